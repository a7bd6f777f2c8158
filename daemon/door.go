package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/model"
)

// door is an agent's way to its model: the listener that the gateway serves for it, and its token.
type door struct {
	agent *supervised

	mu      sync.Mutex
	address string
	// granted is a token that was made at create and is recorded already.
	granted string
}

// accept takes the listener that the executor hands up, before a start and at a take-over.
func (d *door) accept(l net.Listener) {
	d.mu.Lock()
	d.address = l.Addr().String()
	d.mu.Unlock()
	sup := d.agent.sup
	sup.work.Go(func() {
		if err := sup.gateway.Serve(d.agent.id, l); err != nil && !errors.Is(err, net.ErrClosed) {
			sup.logger.Error("gateway stopped serving an agent", "agent", d.agent.id, "error", err)
		}
	})
}

// resolve is the agent's model.Resolver. The token's hash is on disk before the token is handed out,
// so that the next daemon knows it.
func (d *door) resolve(name string) (apiURL, apiKey string, err error) {
	if name == "" {
		return "", "", errors.New("no model is named: give one with --model provider/name, or a MODEL in the Agentfile")
	}
	ref, err := model.ParseRef(name)
	if err != nil {
		return "", "", err
	}
	d.mu.Lock()
	address, token := d.address, d.granted
	d.granted = ""
	d.mu.Unlock()
	if address == "" {
		return "", "", errors.New("the executor gave no listener for the model's endpoint")
	}
	base := gateway.APIBase(ref, address)
	if token != "" {
		return base, token, nil
	}
	sup := d.agent.sup
	if err := sup.gateway.Check(ref); err != nil {
		return "", "", err
	}
	token, hash, err := sup.gateway.Grant(d.agent.id, ref)
	if err != nil {
		return "", "", err
	}
	if err := sup.db.setToken(context.Background(), d.agent.id, hash[:]); err != nil {
		return "", "", err
	}
	return base, token, nil
}

// grantAhead makes the token of the first start, so that it is recorded in the commit that records
// the agent. A model that is not to be had is left for the start to tell.
func (d *door) grantAhead() ([]byte, error) {
	ref, err := model.ParseRef(d.agent.model)
	if err != nil || d.agent.sup.gateway.Check(ref) != nil {
		return nil, nil
	}
	token, hash, err := d.agent.sup.gateway.Grant(d.agent.id, ref)
	if err != nil {
		return nil, fmt.Errorf("grant model %s: %w", ref, err)
	}
	d.mu.Lock()
	d.granted = token
	d.mu.Unlock()
	return hash[:], nil
}

// restore makes the token known that the running runtime was given by an earlier daemon.
func (d *door) restore(hash []byte) {
	ref, err := model.ParseRef(d.agent.model)
	if err != nil || len(hash) != 32 {
		return
	}
	d.agent.sup.gateway.Restore(d.agent.id, ref, [32]byte(hash))
}
