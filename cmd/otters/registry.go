package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxGrace bounds --grace; the daemon has the same bound.
const maxGrace = 24 * time.Hour

func (a *app) registryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "registry",
		Short: "Take care of the embedded registry",
		Args:  cobra.ArbitraryArgs,
		RunE:  helpOrUnknown,
	}
	cmd.AddCommand(a.registryServeCommand(), a.registryGCCommand(), a.registryFsckCommand(), a.registryLoginCommand())
	return cmd
}

func (a *app) registryServeCommand() *cobra.Command {
	var port int
	var anonymous bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the registry alone, without a daemon, until interrupted",
		Long: `Serve the registry alone, without a daemon, until interrupted: the distribution API on the loopback.
A running daemon serves it already; the home must be one that no daemon has.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			args := []string{"serve"}
			if port != 0 {
				args = append(args, "--port", strconv.Itoa(port))
			}
			if anonymous {
				args = append(args, "--anonymous-pull")
			}
			c, err := a.offline(cmd.Context(), args...)
			if err != nil {
				return err
			}
			c.Stdout, c.Stderr = a.out, a.err
			if err := c.Run(); err != nil {
				return fmt.Errorf("registry serve: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&port, "port", 0, "`port` on the loopback (default 5527, or a free one where that is taken)")
	cmd.Flags().BoolVar(&anonymous, "anonymous-pull", false, "let callers without a token pull")
	return cmd
}

func (a *app) registryGCCommand() *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what no tag and no agent needs",
		Long: `Remove from the registry what no tag and no agent, running or stopped, needs. Pushes and pulls may go
on meanwhile. Through a daemon where one runs, else on the home itself.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if grace < 0 || grace > maxGrace {
				return usagef("--grace: %s is not from 0s to 24h", grace)
			}
			seconds := int64((grace + time.Second - 1) / time.Second)
			r := &daemonv1.GCResponse{}
			err := a.with(cmd.Context(), func(c *client.Client) (err error) {
				r, err = c.RegistryGC(cmd.Context(), &daemonv1.GCRequest{GraceSeconds: &seconds})
				return err
			})
			if errors.Is(err, client.ErrNoDaemon) {
				err = a.ask(cmd.Context(), r, "gc", "--grace", grace.String())
			}
			if err != nil {
				return err
			}
			l := lines{w: a.out}
			l.printf("removed %d manifests and %d blobs (%s)", r.GetManifests(), r.GetBlobs(), size(r.GetBytes()))
			if n := r.GetOrphans(); n > 0 {
				l.printf(" and %d files that a crash left", n)
			}
			l.printf("; %d stay\n", r.GetKept())
			return l.err
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", time.Hour, "keep what was pushed, mounted or asked for by a pusher within this `time`, up to 24h; 0s only where nobody pushes")
	return cmd
}

func (a *app) registryFsckCommand() *cobra.Command {
	var skip bool
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check the registry's store and change nothing",
		Long: `Check the registry's store: every digest, and all that refers to something. It changes nothing and
ends with 1 when it found something wrong. Through a daemon where one runs, else on the home itself.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := &daemonv1.FsckResponse{}
			err := a.with(cmd.Context(), func(c *client.Client) (err error) {
				r, err = c.RegistryFsck(cmd.Context(), &daemonv1.FsckRequest{SkipFiles: skip})
				return err
			})
			if errors.Is(err, client.ErrNoDaemon) {
				args := []string{"fsck"}
				if skip {
					args = append(args, "--skip-files")
				}
				err = a.ask(cmd.Context(), r, args...)
			}
			if err != nil {
				return err
			}
			return a.printFsck(r)
		},
	}
	cmd.Flags().BoolVar(&skip, "skip-files", false, "do not read the blobs over 64 KiB; that they are there is still checked")
	return cmd
}

func (a *app) printFsck(r *daemonv1.FsckResponse) error {
	l := lines{w: a.out}
	for _, p := range r.GetProblems() {
		l.printf("%s\n", oneLine(p))
	}
	l.printf("%d contents, %s", r.GetContents(), size(r.GetBytes()))
	if n := r.GetOrphans(); n > 0 {
		l.printf(", %d files that a crash left: `otters registry gc` removes them", n)
	}
	l.printf("\n")
	if n := int64(len(r.GetProblems())) + r.GetFurther(); n > 0 && l.err == nil {
		return fmt.Errorf("registry fsck: %d problems; restore the registry from a copy, or push again what is damaged", n)
	}
	return l.err
}

func (a *app) registryLoginCommand() *cobra.Command {
	var store bool
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Print how to log in to the daemon's registry, or store it for docker and others",
		Long: `Print the address, user and token of the daemon's registry. With --store they go into config.json
below DOCKER_CONFIG, or ~/.docker, where docker, crane, oras, podman and skopeo read them.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				r, err := c.RegistryLogin(cmd.Context())
				if err != nil {
					return err
				}
				if !store {
					return printPairs(a.out, []pair{{"registry", r.GetAddress()}, {"user", r.GetUsername()}, {"token", r.GetToken()}})
				}
				path, err := dockerConfig()
				if err == nil {
					err = storeLogin(path, r.GetAddress(), r.GetUsername(), r.GetToken())
				}
				if err != nil {
					return fmt.Errorf("registry login: %w", err)
				}
				l := lines{w: a.out}
				l.printf("stored the login for %s in %s\n", neutral(r.GetAddress(), false), path)
				return l.err
			})
		},
	}
	cmd.Flags().BoolVar(&store, "store", false, "store the login in docker's config.json instead of printing it")
	return cmd
}

func dockerConfig() (string, error) {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return filepath.Join(dir, "config.json"), nil
	}
	dir, err := os.UserHomeDir()
	return filepath.Join(dir, ".docker", "config.json"), err
}

// maxDockerConfig bounds a file of docker's form in bytes: each registry has a line in it.
const maxDockerConfig = 1 << 20

// storeLogin adds an entry to a file of docker's form and leaves all else in it as it is.
func storeLogin(path, address, user, token string) error {
	config, auths := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	b, err := readFile(path, maxDockerConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; mend it or move it away", err)
	}
	if err == nil {
		if err := json.Unmarshal(b, &config); err != nil {
			return fmt.Errorf("%s: %w; mend it or move it away", path, err)
		}
		if old, ok := config["auths"]; ok {
			if err := json.Unmarshal(old, &auths); err != nil {
				return fmt.Errorf("%s: auths: %w; mend it or move it away", path, err)
			}
		}
	}
	entry, err := json.Marshal(map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + token))})
	if err != nil {
		return err
	}
	auths[address] = entry
	if config["auths"], err = json.Marshal(auths); err != nil {
		return err
	}
	text, err := json.MarshalIndent(config, "", "\t")
	if err != nil {
		return err
	}
	return writePrivate(path, append(text, '\n'))
}

// writePrivate writes a file for its owner alone, whole or not at all.
func writePrivate(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".config-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// offline is the command for the part of ottersd that works on a home without a daemon.
func (a *app) offline(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := findDaemon()
	if err != nil {
		return nil, err
	}
	dir, _, err := a.paths("")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"registry"}, append(args, "--home", dir)...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// ask runs ottersd offline and reads the answer it prints. An answer with an exit code is still one.
func (a *app) ask(ctx context.Context, answer proto.Message, args ...string) error {
	cmd, err := a.offline(ctx, args...)
	if err != nil {
		return err
	}
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	err = cmd.Run()
	if out.Len() > 0 {
		return protojson.Unmarshal(out.Bytes(), answer)
	}
	if text := strings.TrimPrefix(oneLine(strings.TrimSpace(failed.String())), "ottersd: "); err != nil && text != "" {
		return errors.New(text)
	}
	return err
}
