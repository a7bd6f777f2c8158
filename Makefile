# Everything that is done with this repository, on a machine with Go, make, git and, for the race
# detector alone, a C compiler. `make help` lists the targets.

PROGRAMS := otters ottersd otters-runtime otters-tools otters-sandbox otters-attack

# Whatever links gRPC is built without its tracing, which costs memory and start-up time.
TAGS := -tags grpcnotrace

# A program that was built without this reads its version from the module's.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
# A Go heap takes 2 to 5 MiB more for each program where the host makes huge pages of its own accord; this is the setting
# of GODEBUG by which it takes none.
RELEASE := -trimpath $(TAGS) -ldflags "-s -w -X main.version=$(VERSION) -X runtime.godebugDefault=disablethp=1"

# Tests look for races in all but the SQLite that was made of C, whose memory is not Go's: it would take a fifth of their
# time. Nobody debugs what they link, so it comes without what debuggers read.
RACE := -race $(TAGS) -ldflags=-w $(foreach package,sqlite/lib libc memory,-gcflags=modernc.org/$(package)=-race=false)

# In a clone that git does not read, as in one of another user's, go build would fail on its own question.
ifeq ($(shell git rev-parse HEAD 2>/dev/null),)
export GOFLAGS := $(shell go env GOFLAGS) -buildvcs=false
endif

# The demo's agent is a package below testdata, which ./... passes over.
PACKAGES := ./... ./testdata/agents
STATICCHECK := go tool -modfile=internal/tools/go.mod staticcheck

# As soak-short has them; soak has its own. Inputs per fuzz target; how often the crash tests of the registry,
# of handles and of sessions kill; how long agents are created, prompted and killed at random.
FUZZ_RUNS ?= 10000
CRASH_ROUNDS ?= 30
STRESS ?= 20s

# Runs tests with the programs that they run, built once for all packages into a folder that every user reaches.
WITH_PROGRAMS = programs=$$(mktemp -d) && trap 'rm -rf "$$programs"' EXIT && chmod 755 "$$programs" && \
	CGO_ENABLED=0 go build $(RELEASE) -o "$$programs/" $(PROGRAMS:%=./cmd/%) ./executor/executortest/scripted ./cmd/ottersd/testdata/caller && \
	OTTERS_TEST_PROGRAMS="$$programs"

.DEFAULT_GOAL := help
.PHONY: help build demo test lint generate generate-check bench bench-short soak-short soak fuzz crash load stress clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

build: ## build the programs into bin/, as for a release
	CGO_ENABLED=0 go build $(RELEASE) -o bin/ $(PROGRAMS:%=./cmd/%)

demo: build ## build, then run an agent end to end
	bin/otters demo

test: ## run all tests with the race detector
	$(WITH_PROGRAMS) GORACE=atexit_sleep_ms=0 go test $(RACE) $(PACKAGES)
	cd internal/tools && go vet ./...

lint: ## check formatting, go vet, staticcheck, and that macOS and FreeBSD build
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	go vet $(TAGS) $(PACKAGES)
	$(STATICCHECK) $(TAGS) $(PACKAGES)
	for system in darwin freebsd; do GOOS=$$system CGO_ENABLED=0 go build $(TAGS) ./... || exit 1; done

generate: ## generate the Go code of proto/
	cd internal/tools && go run ./protogen -root ../../proto

generate-check: ## fail when the generated code differs from what the sources give
	@new=$$(mktemp -d) && trap 'rm -rf "$$new"' EXIT && \
	cp -R proto/. "$$new" && find "$$new" -name '*.go' -delete && \
	(cd internal/tools && go run ./protogen -root "$$new") && \
	diff -r -x '*_test.go' proto "$$new" || { echo "generated code is stale: run make generate"; exit 1; }

bench: ## run the benchmarks and print their aims
	go run $(TAGS) ./internal/bench all

bench-short: ## run the benchmarks of starting and of many agents, small
	go run $(TAGS) ./internal/bench -n 5 ready
	go run $(TAGS) ./internal/bench --agents 20 density

soak-short: ## run fuzz, crash, load, stress and bench-short, each for a moment
	@$(MAKE) --no-print-directory fuzz
	@$(MAKE) --no-print-directory crash
	@$(MAKE) --no-print-directory load
	@$(MAKE) --no-print-directory stress
	@$(MAKE) --no-print-directory bench-short

soak: ## run fuzz, crash, load and stress for long
	@$(MAKE) --no-print-directory fuzz FUZZ_RUNS=2000000
	@$(MAKE) --no-print-directory crash CRASH_ROUNDS=600
	@$(MAKE) --no-print-directory load
	@$(MAKE) --no-print-directory stress STRESS=10m

# One at a time, as go test has it. A number of inputs, not of seconds: the same work on any machine.
fuzz: ## run every fuzz target on FUZZ_RUNS inputs
	@grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed -E 's#^\./(.*)/[^/]*:func (.*)#\1 \2#' | sort | \
	while read -r dir name; do \
		echo "fuzz $$dir $$name"; \
		go test $(TAGS) -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZ_RUNS)x "./$$dir" </dev/null || exit 1; \
	done

# A process that writes the registry, an agent's handle, or a session, is killed at random instants; what
# it wrote must come back whole.
crash: ## kill whoever writes the registry, a handle or a session, CRASH_ROUNDS times
	OTTERS_CRASH_ROUNDS=$(CRASH_ROUNDS) go test $(TAGS) -count 1 -run TestR11KilledStore -v -timeout 1h ./registry
	OTTERS_CRASH_ROUNDS=$(CRASH_ROUNDS) go test $(TAGS) -count 1 -run TestAKilledWriterLeavesAWholeHandle -v -timeout 1h ./system
	OTTERS_CRASH_ROUNDS=$(CRASH_ROUNDS) go test $(TAGS) -count 1 -run TestAKilledRuntimeKeepsWhatWasHeard -v -timeout 1h ./cmd/otters-runtime

# Tests of make test that it leaves out, or does in part, for the time they take.
load: ## run the tests that are too long for test
	$(WITH_PROGRAMS) OTTERS_LOAD=1 GORACE=atexit_sleep_ms=0 go test $(RACE) -count 1 -run '^(TestR6|TestR7|TestR10|TestTheSuiteTells|TestOthersGoOn|TestNothingGetsOut|TestK16OfADaemon|TestAThousandLong|TestMoreMemory)' \
		./registry ./executor/executortest ./daemon ./cmd/otters-attack ./cmd/otters-runtime ./cmd/otters-tools ./cmd/ottersd

# Agents under many clients at once, while runtimes and monitors are killed and held up, the disk fills and the registry
# breaks, at random: OTTERS_SEED draws the same again.
stress: ## break what agents depend on at random, for as long as STRESS says
	OTTERS_SOAK=$(STRESS) GORACE=atexit_sleep_ms=0 go test $(RACE) -count 1 -timeout 1h -run '^TestSoak$$' ./daemon

clean: ## remove what was built
	rm -rf bin
