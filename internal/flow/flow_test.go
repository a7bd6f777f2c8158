package flow_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/otters-sh/otters/internal/flow"
)

// Invariant: with these options neither end sends a ping of its own, and what is larger than a window arrives
// whole, both ways. Worst inputs: a message of many windows; many calls in a row, as each burst is what
// grpc-go measures; the options of one end alone missing, which the twin without them stands for.

func TestWindowsAreFixedAndHoldNothingBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		dial  []grpc.DialOption
		serve []grpc.ServerOption
		pings bool
	}{
		"ours":      {flow.Dial(), flow.Serve(), false},
		"grpc-go's": {nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frames := &frameCount{}
			conn := echoServer(t, frames, tt.dial, tt.serve)
			big := bytes.Repeat([]byte("otter"), 1<<20)
			for _, sent := range [][]byte{[]byte("a"), big, []byte("b"), []byte("c")} {
				var got wrapperspb.BytesValue
				if err := conn.Invoke(t.Context(), "/echo/Echo", wrapperspb.Bytes(sent), &got); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.GetValue(), sent) {
					t.Errorf("%d bytes came back as %d", len(sent), len(got.GetValue()))
				}
			}
			if n := frames.of(framePing); (n > 0) != tt.pings {
				t.Errorf("%d pings, want some: %v", n, tt.pings)
			}
			if frames.of(frameData) < 8 {
				t.Errorf("%d frames of data: the count counts nothing", frames.of(frameData))
			}
		})
	}
}

func echoServer(t *testing.T, frames *frameCount, dial []grpc.DialOption, serve []grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	const most = 16 << 20
	s := grpc.NewServer(append(serve, grpc.MaxRecvMsgSize(most))...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in wrapperspb.BytesValue
			return &in, decode(&in)
		},
	}}}, struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), append(dial,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, "tcp", addr)
			return &countingConn{Conn: c, in: frameReader{count: frames}, out: frameReader{count: frames, skip: len(preface)}}, err
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// As RFC 9113 has them: sections 3.4, 4.1, 6.1 and 6.7.
const (
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader = 9
	frameData   = 0x0
	framePing   = 0x6
)

// frameCount counts frames by their type.
type frameCount struct {
	mu sync.Mutex
	n  [256]int
}

func (c *frameCount) of(kind byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[kind]
}

// frameReader follows one direction of a connection, of which it gets pieces of any size.
type frameReader struct {
	count  *frameCount
	skip   int
	header []byte
}

func (r *frameReader) see(p []byte) {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			r.skip, p = r.skip-n, p[n:]
			continue
		}
		r.header, p = append(r.header, p[0]), p[1:]
		if len(r.header) == frameHeader {
			r.count.mu.Lock()
			r.count.n[r.header[3]]++
			r.count.mu.Unlock()
			r.skip, r.header = int(r.header[0])<<16|int(r.header[1])<<8|int(r.header[2]), r.header[:0]
		}
	}
}

type countingConn struct {
	net.Conn
	in, out frameReader
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.see(p[:n])
	return n, err
}

func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.out.see(p[:n])
	return n, err
}
