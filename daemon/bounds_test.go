package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// A5. Invariant: no client makes the daemon hold more than its bounds, and none stalls another.

// flood answers prompts without end until the client is gone, and echoes names.
type flood struct {
	daemonv1.UnimplementedDaemonServiceServer
	// blocked gets a value once a send has had to wait; ended one per turn that ended.
	ended chan error
}

func (f *flood) Info(context.Context, *daemonv1.InfoRequest) (*daemonv1.InfoResponse, error) {
	return &daemonv1.InfoResponse{Version: "test"}, nil
}

func (f *flood) GetAgent(_ context.Context, r *daemonv1.GetAgentRequest) (*daemonv1.GetAgentResponse, error) {
	return &daemonv1.GetAgentResponse{Agent: &daemonv1.Agent{Root: r.GetAgent()}}, nil
}

func (f *flood) Build(in buildStream) error {
	for {
		if _, err := in.Recv(); errors.Is(err, io.EOF) {
			return in.SendAndClose(&daemonv1.BuildResponse{})
		} else if err != nil {
			return err
		}
	}
}

func (f *flood) Prompt(_ *daemonv1.PromptRequest, out promptStream) error {
	event := &daemonv1.PromptResponse{Type: "text.delta", Content: strings.Repeat("x", 32<<10)}
	for {
		if err := out.Send(event); err != nil {
			f.ended <- err
			return err
		}
	}
}

// letters reads as x without an end.
type letters struct{}

var manyX = strings.Repeat("x", 64<<10)

func (letters) Read(p []byte) (int, error) { return copy(p, manyX), nil }

// What is refused is never whole in memory here: this process grows by several times as much, and each
// later fork of it takes longer.
func TestA5AMessageOf100MBIsRefusedBesideOneOfThreeMB(t *testing.T) {
	t.Parallel()
	socket := testAPI(t, &flood{}, operator)
	for size, want := range map[int64]codes.Code{100 << 20: codes.ResourceExhausted, 3 << 20: codes.OK} {
		head := binary.AppendUvarint([]byte{1<<3 | 2}, uint64(size)) // field 1, by its length
		head = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(int64(len(head))+size)), head...)
		got, status := post(t, http2Client(t, socket), "application/grpc", daemonv1.DaemonService_GetAgent_FullMethodName,
			io.MultiReader(bytes.NewReader(head), io.LimitReader(letters{}, size)))
		if status != want || want == codes.OK && int64(len(got.body)) < size {
			t.Errorf("%d bytes over HTTP/2: %v and %d bytes, want %v", size, status, len(got.body), want)
		}
	}
	for size, want := range map[int64]int{100 << 20: http.StatusTooManyRequests, 3 << 20: http.StatusOK} {
		got, _ := post(t, testHTTP(t, socket), "application/json", daemonv1.DaemonService_GetAgent_FullMethodName,
			io.MultiReader(strings.NewReader(`{"agent":"`), io.LimitReader(letters{}, size), strings.NewReader(`"}`)))
		if got.code != want {
			t.Errorf("%d bytes over HTTP/1.1: %d %.200s, want %d", size, got.code, got.body, want)
		}
	}
}

type answer struct {
	code int
	body string
}

// http2Client speaks HTTP/2 without what a gRPC client adds.
func http2Client(t *testing.T, socket string) *http.Client {
	t.Helper()
	client := testHTTP(t, socket)
	client.Transport.(*http.Transport).Protocols = new(http.Protocols)
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	return client
}

func postJSON(t *testing.T, socket, path, body string) answer {
	t.Helper()
	got, _ := post(t, testHTTP(t, socket), "application/json", path, strings.NewReader(body))
	return got
}

// post also returns the status of gRPC, Unknown where the answer has none.
func post(t *testing.T, client *http.Client, kind, path string, body io.Reader) (answer, codes.Code) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("TE", "trailers")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	status := codes.Unknown
	// An answer that is nothing but trailers has them where headers are.
	for _, h := range []http.Header{resp.Header, resp.Trailer} {
		if n, err := strconv.Atoi(h.Get("Grpc-Status")); err == nil {
			status = codes.Code(n)
		}
	}
	return answer{resp.StatusCode, b.String()}, status
}

func TestA5AMillionHeaderBytesAreRefusedBesideATenthOfTheBound(t *testing.T) {
	t.Parallel()
	socket := testAPI(t, &flood{}, operator)
	client := daemonv1.NewDaemonServiceClient(testConn(t, socket))
	for size, fine := range map[int]bool{1 << 20: false, maxHeaderBytes / 10: true} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("x", size))
		if _, err := client.Info(ctx, &daemonv1.InfoRequest{}); (err == nil) != fine {
			t.Errorf("%d header bytes over HTTP/2: %v", size, err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+daemonv1.DaemonService_Info_FullMethodName, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Long", strings.Repeat("x", size))
		resp, err := testHTTP(t, socket).Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if (err == nil && resp.StatusCode == http.StatusOK) != fine {
			t.Errorf("%d header bytes over HTTP/1.1: %v, %v", size, resp, err)
		}
	}
}

func TestA5AStreamClientThatNeverReadsStallsNoOther(t *testing.T) {
	t.Parallel()
	impl := &flood{ended: make(chan error, 8)}
	socket := testAPI(t, impl, operator)
	conn := testConn(t, socket)
	client := daemonv1.NewDaemonServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 4 {
		stream, err := client.Prompt(ctx, &daemonv1.PromptRequest{})
		if err != nil {
			t.Fatal(err)
		}
		// The first event tells that the turn runs; no other is ever read.
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	// On the same connection, on another, and over the other protocol.
	for name, c := range map[string]daemonv1.DaemonServiceClient{"same": client, "another": daemonv1.NewDaemonServiceClient(testConn(t, socket))} {
		for range 100 {
			if _, err := c.Info(t.Context(), &daemonv1.InfoRequest{}); err != nil {
				t.Fatalf("%s connection: %v", name, err)
			}
		}
	}
	if got := postJSON(t, socket, daemonv1.DaemonService_Info_FullMethodName, "{}"); got.code != http.StatusOK {
		t.Fatalf("HTTP/1.1: %+v", got)
	}
	cancel()
	for range 4 {
		if err := <-impl.ended; err == nil {
			t.Error("a turn ended without a cause")
		}
	}
}

func TestA5DeepJSONIsRefusedBesideFlatJSON(t *testing.T) {
	t.Parallel()
	socket := testAPI(t, &flood{}, operator)
	path := daemonv1.DaemonService_GetAgent_FullMethodName
	for name, body := range map[string]string{
		"lists":         `{"agent":` + strings.Repeat("[", 1_000_000) + strings.Repeat("]", 1_000_000) + `}`,
		"objects":       strings.Repeat(`{"agent":`, 400_000) + "1" + strings.Repeat("}", 400_000),
		"unclosed":      strings.Repeat("[", 4_000_000),
		"unknown field": `{"agent":"a","nosuch":1}`,
		"key twice":     `{"agent":"a","agent":"b"}`,
		"not UTF-8":     "{\"agent\":\"\xff\"}",
		"no body":       "",
	} {
		if got := postJSON(t, socket, path, body); got.code != http.StatusBadRequest {
			t.Errorf("%s: %d %.200s, want 400", name, got.code, got.body)
		}
	}
	if got := postJSON(t, socket, path, `{"agent":"a"}`); got.code != http.StatusOK || !strings.Contains(got.body, `"root":"a"`) {
		t.Errorf("flat: %+v", got)
	}
}

func TestA5StreamsBeyondTheBoundWaitAndCancelStormsLeaveNothing(t *testing.T) {
	t.Parallel()
	impl := &flood{ended: make(chan error, 2*maxStreams)}
	socket := testAPI(t, impl, operator)
	client := daemonv1.NewDaemonServiceClient(testConn(t, socket))
	var storm sync.WaitGroup
	for range maxStreams + 32 {
		storm.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := client.Prompt(ctx, &daemonv1.PromptRequest{})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := stream.Recv(); err != nil {
				t.Error(err)
			}
		})
	}
	storm.Wait()
	for range maxStreams + 32 {
		<-impl.ended
	}
	if _, err := client.Info(t.Context(), &daemonv1.InfoRequest{}); err != nil {
		t.Error(err)
	}
}
