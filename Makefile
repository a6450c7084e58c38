# Trestle. `make help` lists the targets.
#
# Every target is bounded: the variables below say by what, and can be set on
# the command line, as in `make fuzz FUZZTIME=10m`.

SHELL := /bin/bash -eu -o pipefail
GO ?= go
BIN := bin/trestle
PKGS ?= ./...
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# All is built in one way: trestle, tests, and what tests build share the cache.
export CGO_ENABLED := 0
export GOFLAGS += -trimpath
# README has callers export it. The official client of a test would dial that server too.
unexport BIGTABLE_EMULATOR_HOST

# Packages tested at a time: tests wait for disks, processes and clocks more than half of theirs.
AT_ONCE = $$((2 * $$(getconf _NPROCESSORS_ONLN)))

# The linter runs outside go.mod, at a fixed version.
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# And so does what looks for functions that neither programs nor tests reach.
DEADCODE := golang.org/x/tools/cmd/deadcode@v0.52.0

TEST_TIMEOUT ?= 30m    # for each package's tests; some targets have more
FUZZTIME ?= 15s        # for each fuzz target
CRASH_ROUNDS ?= 20     # kills of a server under load
CLUSTER_ROUNDS ?= 10   # faults of a cluster
CRASH_VIEWS ?= 3       # materialized views of what is written meanwhile, 3 at most
CRASH_SEEDS ?= 200     # power cuts of a process, each with its seed
META_CHECKS ?= 500     # random histories for each random test
META_STEPS ?= 100      # operations in each of them, on average
LOAD ?= 5s             # for each workload that records a history
BENCH ?= .             # which Go benchmarks
BENCHTIME ?= 1s        # for each of them
ROWS ?= 1000000        # of the real data set, and of the table that is backed up
CLUSTER ?= 0           # 1: conformance, kills, backups and realdata run a cluster of processes
SDK ?= 1               # 0: leave out the client's own suites, which download and compile

# What is listed with a comment behind it has spaces in its value.
$(foreach v,TEST_TIMEOUT FUZZTIME CRASH_ROUNDS CRASH_VIEWS META_CHECKS META_STEPS LOAD BENCH BENCHTIME SDK CLUSTER ROWS CRASH_SEEDS CLUSTER_ROUNDS,$(eval $(v) := $(strip $($(v)))))

# Conformance tests run against this binary, as one process or as a cluster.
CONFORM = CONFORMANCE_TRESTLE=$(CURDIR)/$(BIN) CONFORMANCE_CLUSTER=$(CLUSTER:0=)

.DEFAULT_GOAL := help
.PHONY: help packages packages-tools packages-test vuln build run test full race lint fmt fuzz kills crash meta sweep conformance conformance-sql console console-vendor keyvis realdata memory backups cluster stream-faults beam hdfs hbase phoenix connectors kafka kafka-broker bench sim sim-lost sim-scale check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "Bounds (make TARGET NAME=VALUE):"
	@sed -nE 's/^([A-Z_]+) \?= ([^ ]+) +# (.*)/  \1=\2  \3/p' $(MAKEFILE_LIST)

build: ## Build bin/trestle
	$(GO) build -o $(BIN) ./cmd/trestle

run: build ## Run a server on a temporary directory
	$(BIN) serve --temporary --emulator

test: ## Run the tests, but for farms of processes and with fewer seeds (-short)
	$(GO) test -short -p $(AT_ONCE) -timeout $(TEST_TIMEOUT) $(PKGS)

full: ## Run all of them, and list what was skipped; `make lint` does what go vet does
	$(GO) test -v -vet=off -p $(AT_ONCE) -timeout $(TEST_TIMEOUT) $(PKGS) | awk -f .ci/skips.awk

race: export CGO_ENABLED := 1
race: ## Run the tests with the race detector
	$(GO) test -race -short -timeout $(TEST_TIMEOUT) $(PKGS)

# The packages that are others without the tags that the linter has.
UNTAGGED = $(shell git grep -lE '^//go:build.*!(sim|kafka)' -- '*.go' | sed 's|^|./|; s|/[^/]*$$||' | sort -u)

lint: ## Check format, vet, linters, dead code and the arrows between packages (make fmt fixes the format)
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "not formatted (make fmt):"; echo "$$bad"; exit 1; fi
	$(GO) test ./conformance/deptest
	$(GO) vet $(UNTAGGED) # govet, below, has the rest
	GOFLAGS=-trimpath $(GO) run $(GOLANGCI) run --build-tags sim,kafka $(PKGS)
	@dead=$$(GOFLAGS=-trimpath $(GO) run $(DEADCODE) -test -tags sim,kafka $$($(GO) list ./... | grep -v conformance/sdk/external)); if [ -n "$$dead" ]; then echo "nobody calls:"; echo "$$dead"; exit 1; fi
	@if curl -fsS --max-time 10 -o /dev/null https://vuln.go.dev/index/db.json 2>/dev/null; then $(MAKE) --no-print-directory vuln; \
		else echo "NOT CHECKED for vulnerabilities: https://vuln.go.dev cannot be reached (make vuln)"; fi

fmt: ## Format the Go files
	gofmt -w $$(git ls-files '*.go')

fuzz: ## Run each fuzz target for FUZZTIME
	@grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | sed 's/func //' | sort -u); do \
			echo "== $$dir $$target"; \
			$(GO) test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) $$dir; \
		done; \
	done

kills crash conformance meta: TEST_TIMEOUT := 60m
kills: build ## Kill a server CRASH_ROUNDS times under load: nothing acknowledged may be lost, and CRASH_VIEWS views equal their queries; kill it in restores to a time
	$(CONFORM) $(GO) test ./conformance/history -run '^Test(Crash|RestoreAt)$$' -count=1 -v -timeout $(TEST_TIMEOUT) -history.rounds=$(CRASH_ROUNDS) -history.views=$(CRASH_VIEWS)

crash: kills ## The same, and cut the power of a process CRASH_SEEDS times
	TRESTLE_TEST_SEEDS=$(CRASH_SEEDS) $(GO) test ./cluster/tabletserver ./cluster/standalone ./cluster/check -run '^Test(After)?Crash$$' -count=1 -timeout $(TEST_TIMEOUT)

# The tests of the files that make random histories, and the suites that have them in a part of
# their own, Random.
META_FILES = $(shell grep -lE 'rapid\.(Check|MakeCheck)\b|\bRandom.t,' $$(git ls-files '*_test.go'))
META_SUITES = $(shell grep -lE 'backendtest\.(Run|RunExcept|Reopened)\b' $$(git ls-files '*_test.go'))
tests_of = ^($(shell sed -nE 's/^func (Test[A-Za-z0-9_]+).*/\1/p' $(1) | sort -u | paste -sd'|'))$$
packages_of = $(sort $(patsubst %/,./%,$(dir $(1))))
meta: export RAPID_CHECKS = $(META_CHECKS)
meta: export RAPID_STEPS = $(META_STEPS)
meta: export TRESTLE_TEST_SEEDS = $(META_CHECKS)
meta: ## Run META_CHECKS random histories against the models
	$(GO) test -count=1 -timeout $(TEST_TIMEOUT) -run '$(call tests_of,$(META_FILES))' $(call packages_of,$(META_FILES))
	$(GO) test -count=1 -timeout $(TEST_TIMEOUT) -run '$(call tests_of,$(META_SUITES))/^Random$$' $(call packages_of,$(META_SUITES))
	env -u TRESTLE_TEST_SEEDS $(GO) test -count=1 -timeout $(TEST_TIMEOUT) -run 'Random|Meta|Model|Conformance' $(PKGS)

sweep: build ## Call all RPCs of a server and mistreat it: the first part of conformance
	$(CONFORM) $(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./conformance/sweep

conformance: sweep ## Check a server (CLUSTER=1: a cluster): all RPCs, abuse, histories, the client's own suites, cbt
	$(CONFORM) $(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./conformance/trestletest -run '^TestLarge'
	$(CONFORM) $(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./conformance/history -run 'Rows|Bank|Ring' -history.duration=$(LOAD)
	$(CONFORM) $(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./conformance/backups
	$(CONFORM) CONFORMANCE_SDK=$(SDK:0=) $(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./conformance/sdk

realdata: build ## Load ROWS rows of real data, query them, kill the server, check, make it a cluster and back, import them with cbt
	$(CONFORM) $(GO) run ./conformance/realdata -trestle $(BIN) -rows $(ROWS)

SQL_CASES ?= # GoogleSQL's compliance cases, one JSON object a line
SQL_JARS ?= bin/googlesql # or another directory that has them
SQL_QUERIES ?= 100000 # random queries compared with GoogleSQL's reference implementation
bin/googlesql: conformance/sql/reference/testdata/pom.xml
	rm -rf $@ $@.tmp
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@.tmp)
	mv $@.tmp $@

conformance-sql: $(SQL_JARS) ## Compare SQL with GoogleSQL: cases (SQL_CASES=FILE), functions, SQL_QUERIES random queries; fetches it from Maven Central; wants Java 17 and Maven
	$(GO) test ./conformance/sql -count=1 -v -timeout 30m $(if $(strip $(SQL_CASES)),-sql.cases=$(abspath $(strip $(SQL_CASES))))
	$(GO) test ./conformance/sql/reference -count=1 -v -timeout 120m -reference.jars=$(abspath $(SQL_JARS)) -reference.queries=$(strip $(SQL_QUERIES))

# What checks the accessibility of pages: fetched, and no part of the tree.
AXE := bin/console/axe.min.js
$(AXE):
	cmd/trestle/internal/console/vendor.sh axe $@

SHOTS ?= bin/console/pictures # of all pages
console: build $(AXE) ## Show all pages of the console in Chromium, both themes, three widths, also with ROWS rows of real data; pictures into SHOTS; wants chromium, and npm once; root for a full disk
	mkdir -p $(strip $(SHOTS))
	$(CONFORM) $(GO) test ./conformance/console -count=1 -v -timeout 30m -console.axe=$(abspath $(AXE)) -console.shots=$(abspath $(strip $(SHOTS))) -console.rows=$(ROWS)

DURATION ?= 10m # of the load whose heat maps are compared with it
keyvis: build ## Write four patterns of keys for DURATION, compare heat maps with what was written, before and after a restart and splits; pictures into SHOTS
	mkdir -p $(strip $(SHOTS))
	$(CONFORM) $(GO) test ./conformance/console -run '^TestHeat$$' -count=1 -v -timeout 60m -console.heat=$(strip $(DURATION)) -console.shots=$(abspath $(strip $(SHOTS)))

alerts: ## Cause the condition of each alert rule on running servers, until Prometheus says so; wants root, prometheus and strace
	$(GO) test ./cmd/trestle -run '^Test(Cluster)?Alerts$$' -count=1 -v -timeout 30m -alerts

console-vendor: ## Fetch the console's libraries from npm, verify them by their hashes, and put them into the tree
	cmd/trestle/internal/console/vendor.sh

MEMORY ?= 128,512,2048 # MiB
memory: build ## Abuse servers with --memory of MEMORY, measure what they take
	$(CONFORM) $(GO) test ./conformance/memory -count=1 -v -timeout 30m -memory.settings=$(strip $(MEMORY))

backups: build ## Load ROWS generated rows, back them up, kill the server, restore, compare
	$(CONFORM) $(GO) test ./conformance/backups -count=1 -v -timeout $(TEST_TIMEOUT) -backups.rows=$(ROWS)

MINIO ?=
cluster: build ## Kill, stop, cut off, restart and measure processes of a cluster, CLUSTER_ROUNDS times; MINIO=PATH makes MinIO its store
	$(GO) test ./cmd/trestle -run '^TestCluster' -count=1 -v -timeout 30m
	$(CONFORM) $(GO) test ./conformance/cluster -count=1 -v -timeout 120m -cluster.rounds=$(CLUSTER_ROUNDS) -cluster.kills=$(CLUSTER_ROUNDS) -cluster.views=$(CLUSTER_ROUNDS) $(if $(MINIO),-cluster.minio=$(MINIO) -cluster.store=$(MINIO))

stream-faults: build ## Stream a table for DURATION while tablets are split, merged and moved, and servers and the reader killed: what comes out is what was acknowledged
	$(CONFORM) $(GO) test ./conformance/cluster -run '^TestStream$$' -count=1 -v -timeout 120m -cluster.stream=$(strip $(DURATION)) -cluster.streamkills=20s

BEAM ?= $(CURDIR)/bin/beam
$(BEAM)/fetched: conformance/sdk/beam/pom.xml
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(BEAM)/lib
	touch $@

beam: build $(BEAM)/fetched ## Have Beam's connector read the changes of the real data, and for DURATION those of a table while tablets, servers and the pipeline come and go: fetches it from Maven Central; wants Java 17 and Maven
	$(CONFORM) $(GO) run ./conformance/realdata -trestle $(BIN) -rows $(ROWS) -beam $(BEAM)/lib -kills 0 -python= -cbt= -transfer=
	$(CONFORM) $(GO) test ./conformance/cluster -run '^TestStream$$' -count=1 -v -timeout 120m -cluster.stream=$(strip $(DURATION)) -cluster.streamkills=20s -cluster.beam=$(BEAM)/lib

HDFS_JARS ?= $(CURDIR)/bin/hdfs
$(HDFS_JARS):
	engine/objectstore/hdfs/hdfstest/testdata/fetch.sh $@

hdfs: $(HDFS_JARS) ## Run the tests that need a real HDFS: fetches it from Maven Central; wants Java 17 and Maven
	TRESTLE_TEST_HDFS=$(HDFS_JARS) $(GO) test ./engine/objectstore/hdfs -run '^TestReal' -count=1 -v -timeout 20m
	TRESTLE_TEST_HDFS=$(HDFS_JARS) $(GO) test ./cmd/trestle -run '^TestClusterHDFS' -count=1 -v -timeout 20m

HBASE_JARS ?= $(CURDIR)/bin/hbase
$(HBASE_JARS):
	conformance/sdk/hbase/testdata/fetch.sh $@

hbase: build $(HBASE_JARS) ## Run HBase's client, shell, tools and gohbase's tests on one process and on a cluster, beside a real HBase: fetches it from Maven Central; wants Java 17 and Maven
	for cluster in "" 1; do \
		export $(CONFORM) CONFORMANCE_CLUSTER=$$cluster HBASE_JARS=$(HBASE_JARS); \
		$(GO) test ./conformance/sdk/hbase -skip '^TestSpeed$$' -count=1 -v -timeout 30m; \
		CONFORMANCE_SDK=1 $(GO) test ./conformance/sdk -run '^TestGohbase$$' -count=1 -v -timeout 20m; \
	done

PHOENIX_ROWS ?= 1000000
PHOENIX_JARS := $(CURDIR)/bin/phoenix
$(PHOENIX_JARS):
	conformance/sdk/hbase/testdata/fetch.sh $@ phoenix

phoenix: build $(PHOENIX_JARS) ## Ask the same queries of Phoenix on HBase, and tell who takes how long: fetches it from Maven Central; wants Java 17 and Maven
	$(CONFORM) HBASE_JARS=$(PHOENIX_JARS) $(GO) test ./conformance/sdk/hbase -run '^TestPhoenix$$' -count=1 -v -timeout 30m -phoenix.rows=$(strip $(PHOENIX_ROWS))

CONNECTORS ?= $(CURDIR)/bin/connectors
CONNECTOR ?= . # which of their tests
connectors: build ## Fetch other people's programs from their registries, run them unchanged, write docs/connectors.md; wants Java 17, Maven and Python 3
	$(CONFORM) CONNECTORS=$(CONNECTORS) $(GO) test ./conformance/connectors -run '$(strip $(CONNECTOR))' -count=1 -v -timeout 120m -connectors.update

# What packages are made and judged with, outside go.mod, at fixed versions. nfpm
# is the newest whose modules are all on the proxy.
TOOLS := $(CURDIR)/bin/tools
NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4
JUDGES := helm.sh/helm/v4/cmd/helm@v4.3.1 github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0 github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 cloud.google.com/go/bigtable/cmd/cbt@v1.13.0
DIST ?= dist

$(TOOLS)/.%: Makefile
	@mkdir -p $(TOOLS)
	for tool in $($*); do GOFLAGS=-trimpath CGO_ENABLED=0 GOBIN=$(TOOLS) $(GO) install -ldflags '-s -w' $$tool; done
	@touch $@

packages: $(TOOLS)/.NFPM ## Build archives, deb, rpm, images, Helm chart, SBOMs and checksums into DIST
	rm -rf $(DIST)
	GO=$(GO) TOOLS=$(TOOLS) packaging/build.sh $(DIST)

packages-tools: $(TOOLS)/.NFPM $(TOOLS)/.JUDGES

packages-test: packages-tools ## Test what packages has built: install, start, first row, the same bytes twice; says what it cannot test
	PACKAGES=$(abspath $(DIST)) TOOLS=$(TOOLS) $(GO) test ./conformance/packages -count=1 -v -timeout 120m

GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.7.0
vuln: ## Look for known vulnerabilities in what is called: asks vuln.go.dev
	GOFLAGS= $(GO) run $(GOVULNCHECK) $(PKGS)

bench: ## Run the Go benchmarks
	$(GO) test -run='^$$' -bench='$(BENCH)' -benchtime=$(BENCHTIME) -benchmem $(PKGS)

SEED ?= 1
RUNS ?= 200
TIMES ?= 1
# The tests that there are with the tag only.
SIM_TESTS = $(shell grep -l '^//go:build sim' cluster/sim/*_test.go | xargs sed -nE 's/^func (Test[A-Za-z0-9_]+).*/\1/p' | paste -sd'|')
sim: TEST_TIMEOUT := 5h
sim: ## Simulate RUNS single processes and clusters under faults, from SEED on, TIMES times each; a failure names its seed
	TRESTLE_SIM_SEED=$(SEED) TRESTLE_SIM_RUNS=$(RUNS) $(GO) test ./cluster/standalone -run '^TestStorm$$' -count=$(TIMES) -timeout $(TEST_TIMEOUT)
	TRESTLE_SIM_SEED=$(SEED) TRESTLE_SIM_RUNS=$(RUNS) $(GO) test -tags sim ./cluster/sim -run '^($(SIM_TESTS))$$' -count=$(TIMES) -timeout $(TEST_TIMEOUT)

LOSSES ?= 400
sim-lost: ## Lose the lock service LOSSES times, from SEED on; say how often it was recovered
	TRESTLE_SIM_SEED=$(SEED) TRESTLE_SIM_RUNS=$$((($(LOSSES) + 1) / 2)) $(GO) test -tags sim ./cluster/sim -run '^TestLostLockService$$' -count=$(TIMES) -failfast -v -timeout 5h | { grep -v '^=== RUN' || true; }

SCALE ?= 50x10000,150x30000   # servers x tablets, for sim-scale
SCALE := $(strip $(SCALE))
sim-scale: ## Simulate large clusters of SCALE; 500x100000 takes 4 GiB and three minutes
	TRESTLE_SIM_SCALE=$(SCALE) GOMEMLIMIT=5GiB $(GO) test -tags sim ./cluster/sim -run '^TestScale$$' -count=1 -v -timeout 30m

kafka: ## Test the sink to Kafka: against TRESTLE_KAFKA=HOST:PORT,..., or brokers in the test's process
	$(GO) test -tags kafka ./cmd/trestle/internal/feed -run Kafka -count=1 -v

KAFKA_JARS ?= bin/kafka # or another directory that has them
bin/kafka: cmd/trestle/testdata/kafka/pom.xml
	rm -rf $@ $@.tmp
	cmd/trestle/testdata/kafka/fetch.sh $(abspath $@.tmp)
	mv $@.tmp $@

kafka-broker: $(KAFKA_JARS) ## Stream changes to a real Kafka, and kill it and the reader: fetches it from Maven Central; wants Java 17 and Maven
	TRESTLE_TEST_KAFKA=$(abspath $(KAFKA_JARS)) $(GO) test -tags kafka ./cmd/trestle -run '^TestStreamToKafka$$' -count=1 -v -timeout 20m

check: full lint ## What to run before sharing a change

clean: ## Remove what was built
	rm -rf bin dist
