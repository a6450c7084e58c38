package sqldriver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"google.golang.org/api/option"
	gtransport "google.golang.org/api/transport/grpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/compat/sqlclient"
)

func init() { sql.Register("bigtable", Driver{}) }

// scope is what Google's servers want a token for.
const scope = "https://www.googleapis.com/auth/bigtable.data"

// Driver implements driver.DriverContext.
type Driver struct{}

// Open implements driver.Driver.
func (d Driver) Open(name string) (driver.Conn, error) {
	c, err := d.OpenConnector(name)
	if err != nil {
		return nil, err
	}
	return c.Connect(context.Background())
}

// OpenConnector implements driver.DriverContext.
func (d Driver) OpenConnector(name string) (driver.Connector, error) {
	instance, query, _ := strings.Cut(name, "?")
	o, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("bigtable: read the name of the data source: %w", err)
	}
	parts := strings.Split(instance, "/")
	if len(parts) != 4 || parts[0] != "projects" || parts[2] != "instances" {
		return nil, fmt.Errorf("bigtable: %q is no instance, as projects/P/instances/I is", instance)
	}
	for k := range o {
		if k != "endpoint" && k != "plaintext" && k != "app_profile" {
			return nil, fmt.Errorf("bigtable: %q in the name of the data source is not known", k)
		}
	}
	endpoint := o.Get("endpoint")
	plaintext := false
	if text := o.Get("plaintext"); text != "" {
		if plaintext, err = strconv.ParseBool(text); err != nil {
			return nil, fmt.Errorf("bigtable: plaintext=%s is neither true nor false", text)
		}
	}
	if emulator := os.Getenv("BIGTABLE_EMULATOR_HOST"); endpoint == "" && emulator != "" {
		endpoint, plaintext = emulator, true
	}
	if endpoint == "" {
		endpoint = "bigtable.googleapis.com:443"
	}
	var conn *grpc.ClientConn
	if plaintext {
		conn, err = grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	} else {
		conn, err = gtransport.Dial(context.Background(), option.WithEndpoint(endpoint), option.WithScopes(scope),
			option.WithGRPCDialOption(grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage))))
	}
	if err != nil {
		return nil, err
	}
	c := OpenConnector(conn, instance, o.Get("app_profile")).(*connector)
	c.close = conn.Close
	return c, nil
}

// maxMessage is more than any row has.
const maxMessage = 256 << 20

// OpenConnector returns a connector for sql.OpenDB over a connection, which the
// caller closes. profile may be empty.
func OpenConnector(conn grpc.ClientConnInterface, instance, profile string) driver.Connector {
	return &connector{client: sqlclient.Client{Conn: conn, Instance: instance, Profile: profile}}
}

type connector struct {
	client sqlclient.Client
	close  func() error
}

// Connect implements driver.Connector. All connections are one of gRPC.
func (c *connector) Connect(context.Context) (driver.Conn, error) { return &conn{&c.client}, nil }

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return Driver{} }

// Close implements io.Closer, for sql.DB.
func (c *connector) Close() error {
	if c.close == nil {
		return nil
	}
	return c.close()
}

// conn implements driver.Conn.
type conn struct{ client *sqlclient.Client }

var (
	_ driver.QueryerContext    = (*conn)(nil)
	_ driver.ExecerContext     = (*conn)(nil)
	_ driver.NamedValueChecker = (*conn)(nil)
	_ driver.Pinger            = (*conn)(nil)
)

func (c *conn) Close() error { return nil }

// Begin refuses: there are no transactions.
func (c *conn) Begin() (driver.Tx, error) {
	return nil, errors.New("bigtable: there are no transactions")
}

// Prepare keeps the text. The types of its parameters are known when it is run.
func (c *conn) Prepare(query string) (driver.Stmt, error) { return &stmt{c, query}, nil }

// CheckNamedValue lets all values pass to param.
func (c *conn) CheckNamedValue(*driver.NamedValue) error { return nil }

// Ping runs a statement that reads nothing.
func (c *conn) Ping(ctx context.Context) error {
	r, err := c.QueryContext(ctx, "SELECT 1", nil)
	if err != nil {
		return err
	}
	return r.Close()
}

// ExecContext runs a statement; its result is how many rows it wrote.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r, err := c.QueryContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	affected := driver.Result(driver.ResultNoRows)
	row := make([]driver.Value, len(r.Columns()))
	if len(row) == 1 && r.Columns()[0] == "rows_affected" {
		if err := r.Next(row); err != nil {
			return nil, err
		}
		if n, ok := row[0].(int64); ok {
			affected = driver.RowsAffected(n)
		}
	}
	return affected, nil
}

// stmt implements driver.Stmt.
type stmt struct {
	c     *conn
	query string
}

var (
	_ driver.StmtQueryContext  = (*stmt)(nil)
	_ driver.StmtExecContext   = (*stmt)(nil)
	_ driver.NamedValueChecker = (*stmt)(nil)
)

func (s *stmt) Close() error  { return nil }
func (s *stmt) NumInput() int { return -1 }

func (s *stmt) CheckNamedValue(*driver.NamedValue) error { return nil }

// Exec implements driver.Stmt; database/sql uses ExecContext.
func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), named(args))
}

// Query implements driver.Stmt; database/sql uses QueryContext.
func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), named(args))
}

func named(args []driver.Value) []driver.NamedValue {
	out := make([]driver.NamedValue, len(args))
	for i, v := range args {
		out[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return out
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.ExecContext(ctx, s.query, args)
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.QueryContext(ctx, s.query, args)
}
