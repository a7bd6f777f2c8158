//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/model"
)

// gatewayShare measures what the gateway adds to a streamed model call of 20 events, beside the
// same call to the model server itself.
func gatewayShare(ctx context.Context, runs int) (_ []row, err error) {
	words := make([]string, 20)
	for i := range words {
		words[i] = fmt.Sprintf("%d ", i)
	}
	upstream := modelserver.Start(func(modelserver.Request) modelserver.Answer {
		return modelserver.Answer{Pieces: words}
	})
	defer upstream.Close()

	dir, err := os.MkdirTemp("", "otters-bench-gateway-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "providers.yaml")
	text := fmt.Sprintf("providers:\n  - name: scripted\n    api-key: sk-bench\n    api-base: %s\n", upstream.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	providers, err := gateway.LoadProviders(file)
	if err != nil {
		return nil, err
	}
	g := gateway.New(gateway.Options{Providers: providers})
	agent := uuid.New()
	token, _, err := g.Grant(agent, model.Ref{Provider: "scripted", Name: "m"})
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(agent, ln) }()
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, g.Close(closeCtx), <-served)
	}()

	var direct, through samples
	for i := range max(runs*5, 200) + 5 {
		dt, err := complete(ctx, upstream.URL, "sk-bench")
		if err != nil {
			return nil, fmt.Errorf("model server: %w", err)
		}
		gt, err := complete(ctx, "http://"+ln.Addr().String()+gateway.BasePath, token)
		if err != nil {
			return nil, fmt.Errorf("through the gateway: %w", err)
		}
		if i >= 5 {
			direct, through = append(direct, dt), append(through, gt)
		}
	}
	share := through.quantile(.5) - direct.quantile(.5)
	return []row{
		direct.row("model call of 20 events, direct p50", .5),
		through.row("model call of 20 events, by the gateway p50", .5),
		{Name: "gateway's own share p50", Value: ms(share), Unit: "ms"},
	}, nil
}

// complete makes one streamed call and reads it to its end.
func complete(ctx context.Context, base, key string) (time.Duration, error) {
	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
		return 0, fmt.Errorf("%s: %s", res.Status, text)
	}
	events := 0
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			events++
		}
	}
	if events < 20 {
		return 0, fmt.Errorf("%d events of at least 20", events)
	}
	return time.Since(start), lines.Err()
}
