package system_test

import (
	"testing"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/executor/executortest"
	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/system"
)

// The contract, at each level that this host can have.
func TestTheContractIsKept(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level sandbox.Level) {
		executortest.Run(t, executortest.Options{
			New: func(t *testing.T, w *executortest.World) executor.Provider {
				fs, err := rootfs.Open(w.Dir)
				if err != nil {
					t.Fatal(err)
				}
				options := append(apart(t, level),
					system.WithSandbox(level), system.WithMonitor(monitor), system.WithLogDir(t.TempDir()),
					system.WithPuller(w.Pull), system.WithLabelReader(w.Labels),
					system.WithAgentDefaults(system.WithModelResolver(w.ResolveModel), system.WithDigestResolver(w.Digest),
						system.WithDaemonURL(w.DaemonURL), system.WithAgentToken(w.AgentToken)))
				p := system.NewProvider(fs, w.StoreFor, options...)
				t.Cleanup(func() {
					if err := p.Close(); err != nil {
						t.Error(err)
					}
					fs.Close()
				})
				return p
			},
			Close: func(p executor.Provider) error { return p.(*system.Provider).Close() },
		})
	})
}
