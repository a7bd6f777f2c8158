// Package client speaks to the daemon's API over its unix socket. It is what the command line is
// written on, for any program of the operator.
//
// Invariant: a call ends when its context does; every error is an *Error, or a local one that
// names the file it is about; what it sends goes to a daemon of the caller's user or of root.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/otters-sh/otters/internal/flow"
	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/internal/home"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxMessage bounds one answer in bytes: a list of 10,000 agents has about 5 MiB.
const maxMessage = 16 << 20

// DefaultHome returns the folder where a daemon started with this environment keeps its state.
func DefaultHome() (string, error) { return home.Home() }

// DefaultSocket returns the path of the socket of a daemon started with this environment.
func DefaultSocket() (string, error) {
	dir, err := home.Home()
	if err != nil {
		return "", err
	}
	return home.Socket(dir)
}

// Options says how to reach the daemon. The zero value is the daemon of this environment.
type Options struct {
	// Socket is the path of the daemon's unix socket; empty is DefaultSocket.
	Socket string
}

// Client is a connection to a daemon. It may be used from several goroutines at once.
type Client struct {
	socket string
	conn   *grpc.ClientConn
	api    daemonv1.DaemonServiceClient
	images daemonv1.ImageServiceClient
	talk   daemonv1.ConversationServiceClient
}

// Dial connects to the daemon. Where none listens the error wraps ErrNoDaemon. The caller closes
// the client.
func Dial(ctx context.Context, opts Options) (*Client, error) {
	socket := opts.Socket
	if socket == "" {
		var err error
		if socket, err = DefaultSocket(); err != nil {
			return nil, err
		}
	}
	first, err := connect(ctx, socket)
	if err != nil {
		return nil, err
	}
	d := &dialer{socket: socket, first: first}
	// The passthrough target takes any path as it is, where a unix: one is parsed as an URL.
	conn, err := grpc.NewClient("passthrough:///otters", append(flow.Dial(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(d.dial),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)...)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the daemon: %w", err), first.Close())
	}
	conn.Connect()
	return &Client{socket: socket, conn: conn, api: daemonv1.NewDaemonServiceClient(conn), images: daemonv1.NewImageServiceClient(conn), talk: daemonv1.NewConversationServiceClient(conn)}, nil
}

// Socket returns the path the client is connected to.
func (c *Client) Socket() string { return c.socket }

// Close ends the connection; calls under way end with codes.Canceled.
func (c *Client) Close() error { return c.conn.Close() }

// dialer hands the connection that Dial has checked to gRPC, and makes new ones after it.
type dialer struct {
	socket string

	mu    sync.Mutex
	first net.Conn
}

func (d *dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	d.mu.Lock()
	conn := d.first
	d.first = nil
	d.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	return connect(ctx, d.socket)
}

func connect(ctx context.Context, socket string) (net.Conn, error) {
	if err := home.CheckSocket(socket); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, dialError(ctx, socket, err)
	}
	if err := checkPeer(conn.(*net.UnixConn), os.Geteuid()); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", socket, err), conn.Close())
	}
	return conn, nil
}

// checkPeer keeps prompts and variables from a program of another user that took the socket's
// path. Root is asked for nothing: it may name the socket of any user.
func checkPeer(conn *net.UnixConn, own int) error {
	if own == 0 {
		return nil
	}
	uid, err := gate.PeerUID(conn)
	if err != nil {
		return fmt.Errorf("peer credentials: %w", err)
	}
	if uid != own && uid != 0 {
		return fmt.Errorf("it is served by user %d, not by your own %d or root; use the socket of your own daemon", uid, own)
	}
	return nil
}

// call turns the error of an answer into an *Error.
func call[T any](ctx context.Context, c *Client, answer T, err error) (T, error) {
	if err != nil {
		var none T
		return none, c.fromCall(ctx, err)
	}
	return answer, nil
}

// receive yields the messages of a stream. The stream is cancelled when the loop ends.
func receive[T any](ctx context.Context, c *Client, open func(context.Context) (grpc.ServerStreamingClient[T], error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(ctx)
		if err != nil {
			yield(nil, c.fromCall(ctx, err))
			return
		}
		for {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, c.fromCall(ctx, err))
				return
			}
			if !yield(message, nil) {
				return
			}
		}
	}
}
