// Command peers serves another registry for the benchmark to be held against: in a module of its
// own, so that nobody who imports Otters gets these servers.
//
// Usage: peers ggcr|distribution DIR
//
// It prints the address it listens on, on the loopback, and serves until it is killed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the driver "filesystem"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/sirupsen/logrus"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: peers ggcr|distribution DIR")
	}
	handler, err := peer(args[0], args[1])
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return http.Serve(l, handler)
}

func peer(name, dir string) (http.Handler, error) {
	switch name {
	case "ggcr":
		// Blobs are files, manifests in memory; nothing is synced.
		return ggcr.New(ggcr.WithBlobHandler(ggcr.NewDiskBlobHandler(dir)), ggcr.WithReferrersSupport(true), ggcr.Logger(log.New(io.Discard, "", 0))), nil
	case "distribution":
		logrus.SetOutput(io.Discard)
		config := &configuration.Configuration{Storage: configuration.Storage{
			"filesystem":  {"rootdirectory": dir},
			"delete":      {"enabled": true},
			"maintenance": {"uploadpurging": map[any]any{"enabled": false}},
		}}
		config.HTTP.Secret = "benchmark"
		config.Log.Level = "error"
		config.Log.AccessLog.Disabled = true
		return handlers.NewApp(context.Background(), config), nil
	}
	return nil, fmt.Errorf("no peer %q", name)
}
