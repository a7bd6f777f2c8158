package client

import (
	"context"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

func (c *Client) registry() daemonv1.RegistryServiceClient {
	return daemonv1.NewRegistryServiceClient(c.conn)
}

// RegistryGC removes from the embedded registry what no tag and no agent needs.
func (c *Client) RegistryGC(ctx context.Context, req *daemonv1.GCRequest) (*daemonv1.GCResponse, error) {
	r, err := c.registry().GC(ctx, req)
	return call(ctx, c, r, err)
}

// RegistryFsck checks the embedded registry and changes nothing.
func (c *Client) RegistryFsck(ctx context.Context, req *daemonv1.FsckRequest) (*daemonv1.FsckResponse, error) {
	r, err := c.registry().Fsck(ctx, req)
	return call(ctx, c, r, err)
}

// RegistryLogin tells where the embedded registry is and the token for it.
func (c *Client) RegistryLogin(ctx context.Context) (*daemonv1.LoginResponse, error) {
	r, err := c.registry().Login(ctx, &daemonv1.LoginRequest{})
	return call(ctx, c, r, err)
}
