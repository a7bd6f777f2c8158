package executortest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/executor/executortest"
)

func TestTheDocumentedExecutorKeepsTheContract(t *testing.T) {
	t.Parallel()
	executortest.Run(t, executortest.Options{New: func(_ *testing.T, w *executortest.World) executor.Provider { return tiny(w) }})
}

// tiny is the example in the world w.
func tiny(w *executortest.World) *Tiny {
	return &Tiny{
		Dir: w.Dir, Host: w.Host, Store: w.StoreFor, Pull: w.Pull, Labels: w.Labels, Resolve: w.ResolveModel,
		Env: []string{"OTTERSD_URL=" + w.DaemonURL, "OTTERS_AGENT_TOKEN=" + w.AgentToken},
	}
}

// The page shows the executor that was tested, to the letter.
func TestThePageShowsTheExecutorThatIsTested(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/executors.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("tiny_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```go\n"+string(code)+"```\n") {
		t.Error("docs/executors.md does not hold tiny_test.go; copy it there")
	}
}
