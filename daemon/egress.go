package daemon

import (
	"net"

	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/egress"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/system"
)

// destinations are those of a request, in canonical form.
func destinations(req *daemonv1.CreateAgentRequest) ([]string, error) {
	parsed, err := egress.ParseDestinations(req.GetAllowNet())
	if err != nil {
		return nil, fail(codes.InvalidArgument, "", "allow net: %w", err)
	}
	var out []string
	for _, d := range parsed {
		out = append(out, d.String())
	}
	return out, nil
}

// acceptProxy serves the agent's proxy on the listener that the executor hands up, before a start and
// at a take-over.
func (a *supervised) acceptProxy(e system.Egress, l net.Listener) {
	grant := egress.Grant{Agent: a.id.String(), TokenHash: e.TokenHash}
	var err error
	if grant.Destinations, err = egress.ParseDestinations(e.Destinations); err != nil {
		// They were read at create; what another version wrote opens nothing.
		a.sup.logger.Error("destinations not opened", "agent", a.id, "error", err)
	}
	a.sup.work.Go(func() {
		if err := a.sup.egress.Serve(grant, l); err != nil {
			a.sup.logger.Error("proxy stopped serving an agent", "agent", a.id, "error", err)
		}
		a.sup.connections.forget(grant.Agent)
	})
}
