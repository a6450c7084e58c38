package sqlshell

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/compat/sqlclient"
)

// A Client runs statements on one instance, and lists what is in it.
type Client struct {
	sqlclient.Client
	Admin grpc.ClientConnInterface
}

// tables returns the names of tables and of logical views, sorted.
func (c *Client) tables(ctx context.Context) (tables, views []string, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-goog-request-params", "parent="+url.QueryEscape(c.Instance))
	list := &adminpb.ListTablesRequest{Parent: c.Instance}
	for {
		r, err := adminpb.NewBigtableTableAdminClient(c.Admin).ListTables(ctx, list)
		if err != nil {
			return nil, nil, err
		}
		for _, t := range r.GetTables() {
			tables = append(tables, lastPart(t.GetName()))
		}
		if list.PageToken = r.GetNextPageToken(); list.PageToken == "" {
			break
		}
	}
	viewList := &adminpb.ListLogicalViewsRequest{Parent: c.Instance}
	for {
		r, err := adminpb.NewBigtableInstanceAdminClient(c.Admin).ListLogicalViews(ctx, viewList)
		if code := status.Code(err); code == codes.Unimplemented || code == codes.PermissionDenied {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		for _, v := range r.GetLogicalViews() {
			views = append(views, lastPart(v.GetName()))
		}
		if viewList.PageToken = r.GetNextPageToken(); viewList.PageToken == "" {
			break
		}
	}
	slices.Sort(tables)
	slices.Sort(views)
	return tables, views, nil
}

func lastPart(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// anyInstance is one that a server without instances may take, as an emulator does.
const anyInstance = "projects/default/instances/default"

// FindInstance returns the only instance of a server, as one that was just set up
// has.
func FindInstance(ctx context.Context, admin grpc.ClientConnInterface) (string, error) {
	r, err := adminpb.NewBigtableInstanceAdminClient(admin).ListInstances(ctx, &adminpb.ListInstancesRequest{Parent: "projects/-"})
	if code := status.Code(err); code == codes.InvalidArgument || code == codes.PermissionDenied || code == codes.NotFound {
		return "", errors.New("give --project and --instance: this server does not tell which there are")
	}
	if err != nil {
		return "", err
	}
	var names []string
	for _, i := range r.GetInstances() {
		names = append(names, i.GetName())
	}
	switch len(names) {
	case 0:
		return anyInstance, nil
	case 1:
		return names[0], nil
	}
	slices.Sort(names)
	return "", fmt.Errorf("give --project and --instance: the server has %s", strings.Join(names, ", "))
}
