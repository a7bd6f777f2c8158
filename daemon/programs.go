package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

const (
	runtimeProgram = "otters-runtime"
	toolsProgram   = "otters-tools"
	monitorProgram = "otters-sandbox"
	// runtimeImage is the runtime of agents whose image names none.
	runtimeImage = "otters/runtime"
	toolImages   = "otters/tools/"
	// packing changes when the same program would be stored as another image.
	packing = "4"
	// maxListing bounds what otters-tools prints of itself.
	maxListing = 1 << 20
	// listingTimeout is how long it may take.
	listingTimeout = 20 * time.Second
	// packers is how many tools are stored at the same time.
	packers = 8
)

// programs stores the programs beside the daemon as images of its registry.
type programs struct {
	dir    string
	images *imageRegistry
	db     *database
	logger *slog.Logger
}

// install stores the runtime and the tools where they are new or have changed since. A program that
// is not there is not an error, since agents may bring their own; it is logged.
func (p *programs) install(ctx context.Context) error {
	for _, it := range []struct {
		name, image string
		pack        func(context.Context, string) error
	}{
		{runtimeProgram, runtimeImage + ":latest", p.packRuntime},
		{toolsProgram, "", p.packTools},
	} {
		path := filepath.Join(p.dir, it.name)
		stamp, err := stampOf(path)
		if errors.Is(err, fs.ErrNotExist) {
			p.logger.Warn("program not found; agents that need it will fail", "program", path)
			continue
		}
		if err != nil {
			return fmt.Errorf("store %s: %w", it.name, err)
		}
		if fresh, err := p.fresh(ctx, it.name, stamp, it.image); err != nil || fresh {
			if err != nil {
				return fmt.Errorf("store %s: %w", it.name, err)
			}
			continue
		}
		if err := it.pack(ctx, path); err != nil {
			return fmt.Errorf("store %s: %w", it.name, err)
		}
		if err := p.db.setStamp(ctx, it.name, stamp); err != nil {
			return err
		}
	}
	return nil
}

// stampOf tells a changed file without reading it.
func stampOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return "", fmt.Errorf("%s is not an executable file", path)
	}
	return fmt.Sprintf("%s %s %d %d", packing, path, info.Size(), info.ModTime().UnixNano()), nil
}

func (p *programs) fresh(ctx context.Context, name, stamp, image string) (bool, error) {
	have, err := p.db.stamp(ctx, name)
	if err != nil || have != stamp {
		return false, err
	}
	if image == "" {
		return true, nil
	}
	_, err = p.images.store.Resolve(ctx, image)
	if errors.Is(err, errdef.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func hostPlatform() ocispec.Platform {
	return ocispec.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}
}

// packLayer stores the program at path as a layer in which it is called name.
func (p *programs) packLayer(ctx context.Context, path, name string, links []string) (agentoci.Layer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return agentoci.Layer{}, err
	}
	return agentoci.PackLayer(ctx, p.images.store, agentoci.Program{
		Platform: hostPlatform(), Name: name, Links: links, Size: info.Size(),
		Open: func() (io.ReadCloser, error) { return os.Open(path) },
	})
}

func (p *programs) packRuntime(ctx context.Context, path string) error {
	layer, err := p.packLayer(ctx, path, "runtime", nil)
	if err != nil {
		return err
	}
	labels := map[string]string{system.ListenerLabel: "inherit", system.SessionsLabel: "offline"}
	if names, err := p.capabilities(ctx, path); err != nil {
		p.logger.Warn("the runtime does not tell its capabilities; agents that want one it lacks fail at their start", "error", err)
	} else {
		labels[system.CapabilitiesLabel] = names
	}
	_, err = agentoci.PackBin(ctx, p.images.store, agentoci.BinImage{
		Name: "runtime", Description: "The default runtime of agents",
		Labels: labels,
		Layers: []agentoci.Layer{layer}, Tags: []string{runtimeImage + ":latest"},
	})
	return err
}

// capabilities are what the runtime tells of itself, by commas.
func (p *programs) capabilities(ctx context.Context, path string) (string, error) {
	listing, err := output(ctx, path, "capabilities")
	if err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(string(listing)), ","), nil
}

// packTools stores one image per tool; all share the layer with the program.
func (p *programs) packTools(ctx context.Context, path string) error {
	listing, err := output(ctx, path, "list", "--json")
	if err != nil {
		return err
	}
	var tools []struct{ Name, Description, Usage string }
	if err := json.Unmarshal(listing, &tools); err != nil {
		return fmt.Errorf("list of tools: %w", err)
	}
	names := make([]string, 0, len(tools))
	for _, t := range tools {
		if _, err := spec.ParseReference(toolImages + t.Name); err != nil {
			return fmt.Errorf("list of tools: %w", err)
		}
		if t.Usage == "" {
			return fmt.Errorf("list of tools: %s comes without a usage", t.Name)
		}
		names = append(names, t.Name)
	}
	layer, err := p.packLayer(ctx, path, toolsProgram, names)
	if err != nil {
		return err
	}
	// Beside each other, since storing an image is mostly waiting for the disk.
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(packers)
	for _, t := range tools {
		group.Go(func() error {
			if _, err := agentoci.PackBin(ctx, p.images.store, agentoci.BinImage{
				Name: t.Name, Description: t.Description, Usage: t.Usage,
				Layers: []agentoci.Layer{layer}, Tags: []string{toolImages + t.Name + ":latest"},
			}); err != nil {
				return fmt.Errorf("tool %s: %w", t.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// output runs a program of ours, for at most listingTimeout, with nothing of this process's environment.
func output(ctx context.Context, path string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, listingTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{}
	var out, errs limitedBuffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, flatten(string(errs.b)))
	}
	return out.b, nil
}

// limitedBuffer refuses to grow beyond maxListing.
type limitedBuffer struct{ b []byte }

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if len(l.b)+len(p) > maxListing {
		return 0, fmt.Errorf("more than %d bytes of output", maxListing)
	}
	l.b = append(l.b, p...)
	return len(p), nil
}
