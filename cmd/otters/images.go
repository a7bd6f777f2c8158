package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/spec"
)

// buildFlags are the flags of build.
type buildFlags struct {
	tags, args []string
	file       string
}

func (a *app) buildCommand() *cobra.Command {
	var f buildFlags
	cmd := &cobra.Command{
		Use:   "build -t NAME[:TAG] [flags] DIR|FILE|-",
		Short: "Build an agent image from a folder with an Agentfile",
		Long: fmt.Sprintf(`Build an agent image from a folder with an Agentfile, and store it in the daemon's registry. With a FILE
for the folder it is the Agentfile, of the folder that it lies in.

The folder is sent to the daemon: its files, folders and symlinks (as symlinks), at most %d of
them and %s. A socket, device or named pipe in it is an error. What its .agentignore names, in the
patterns of a .dockerignore, stays behind.

With - for the folder, standard input is the folder as a tar archive, plain or with gzip, or else an
Agentfile that names no other file. With -f - it is the Agentfile, for a folder that is named.`, client.MaxArchiveEntries, size(client.MaxArchiveBytes)),
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, dirs []string) error { return a.buildFolder(cmd.Context(), f, dirs[0]) },
	}
	cmd.Flags().StringArrayVarP(&f.tags, "tag", "t", nil, "`name[:tag]` of the image; may be given several times")
	fileFlag(cmd, &f.file)
	cmd.Flags().StringArrayVar(&f.args, "build-arg", nil, "`K=V` for an ARG; K alone takes the value from the environment; may be given several times")
	return cmd
}

func fileFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "file", "f", "", "`path` of the Agentfile in the folder, or - for standard input (default: Agentfile)")
}

// buildFolder builds what build was given: a folder, an Agentfile, or - for standard input.
func (a *app) buildFolder(ctx context.Context, f buildFlags, given string) error {
	if len(f.tags) == 0 {
		return usagef("build: no name for the image; give one with -t NAME")
	}
	values, err := keyValues("--build-arg", f.args)
	if err != nil {
		return err
	}
	opts := client.BuildOptions{Tags: f.tags, File: f.file, Args: map[string]string{}}
	for _, kv := range values {
		opts.Args[kv[0]] = kv[1]
	}
	switch {
	case given == "-" && f.file == "-":
		return usagef("build: standard input can't be the folder and the Agentfile; name the folder, or leave -f out")
	case strings.Contains(given, "://") || strings.HasPrefix(given, "git@"):
		return usagef("build: %s is no folder; fetch it first, or send it as a tar archive: `curl URL | otters build -`", given)
	case given == "-":
		if err := a.standardInput(ctx, &opts); err != nil {
			return err
		}
		return a.sendBuild(ctx, opts, "standard input")
	case f.file == "-":
		if opts.Agentfile, err = a.agentfileText(ctx, a.in, "build"); err != nil {
			return err
		}
		if len(opts.Agentfile) == 0 {
			return usagef("build: standard input is empty; give an Agentfile")
		}
	}
	dir, file, err := place("build", given, f.file)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return folderError("build", dir, err)
	}
	defer root.Close()
	opts.Source, opts.File = root.FS(), file
	return a.sendBuild(ctx, opts, given)
}

func (a *app) sendBuild(ctx context.Context, opts client.BuildOptions, what string) error {
	return a.with(ctx, func(c *client.Client) error {
		_, err := a.build(ctx, c, opts, what, a.out)
		return err
	})
}

// standardInput makes the build folder of what standard input holds.
func (a *app) standardInput(ctx context.Context, opts *client.BuildOptions) error {
	const magicAt = 257 // where a tar archive of POSIX says that it is one
	in := bufio.NewReader(a.in)
	first, err := in.Peek(magicAt + 5)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("build: standard input: %w", err)
	case len(first) == 0:
		return usagef("build: standard input is empty; give a tar archive or an Agentfile")
	case len(first) > magicAt && string(first[magicAt:]) == "ustar":
		opts.Archive = in
		return nil
	case bytes.HasPrefix(first, []byte("\x1f\x8b")):
		// The daemon bounds what comes out.
		opts.Archive, err = gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("build: standard input: gzip: %w; make the archive again", err)
		}
		return nil
	}
	for _, c := range []struct{ magic, name string }{{"\x28\xb5\x2f\xfd", "zstd"}, {"BZh", "bzip2"}, {"\xfd7zXZ", "xz"}, {"PK\x03\x04", "zip"}} {
		if bytes.HasPrefix(first, []byte(c.magic)) {
			return usagef("build: standard input is compressed with %s; send a tar archive, plain or with gzip", c.name)
		}
	}
	if opts.File != "" {
		return usagef("build: -f %s names a file of an archive, and standard input is none", opts.File)
	}
	text, err := a.agentfileText(ctx, in, "build")
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "Agentfile", Mode: 0o644, Size: int64(len(text)), Format: tar.FormatPAX})
	if err == nil {
		_, err = w.Write(text)
	}
	opts.Archive = &archive
	return errors.Join(err, w.Close())
}

func folderError(what, dir string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("%s: folder %s: %w; name the folder with the Agentfile", what, dir, err)
}

func (a *app) build(ctx context.Context, c *client.Client, opts client.BuildOptions, dir string, out io.Writer) (digest string, err error) {
	r, err := c.Build(ctx, opts)
	if errors.Is(err, client.ErrArchive) {
		return "", fmt.Errorf("build %s: %w", dir, err)
	}
	if err != nil {
		return "", agentfileError{err}
	}
	for _, w := range r.GetWarnings() {
		fmt.Fprintln(a.err, "warning: "+oneLine(w))
	}
	l := lines{w: out}
	for _, ref := range r.GetReferences() {
		l.printf("%s %s\n", neutral(ref, false), neutral(r.GetDigest(), false))
	}
	return r.GetDigest(), l.err
}

// isFolder tells whether what run was given is a folder to build, which starts with a dot or slash,
// as no image's name does.
func isFolder(arg string) bool { return strings.HasPrefix(arg, ".") || strings.HasPrefix(arg, "/") }

// buildToRun builds a folder for run and names the image: as the Agentfile's NAME, or else as the
// folder.
func (a *app) buildToRun(ctx context.Context, c *client.Client, dir string) (string, error) {
	file, err := a.readAgentfile(ctx, "run", dir, "")
	if err != nil {
		return "", err
	}
	name, err := imageName(file)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(file.dir)
	if err != nil {
		return "", folderError("run", dir, err)
	}
	defer root.Close()
	opts := client.BuildOptions{Tags: []string{name}, File: file.file, Source: root.FS()}
	// By digest, since the name may move before the agent is created.
	digest, err := a.build(ctx, c, opts, dir, a.err)
	return name + "@" + digest, err
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

func imageName(file agentfile) (string, error) {
	name := ""
	// What is wrong with the file, the build tells.
	if def, err := spec.Parse(file.name, file.text, spec.ParseOptions{}); err == nil {
		name = def.Name
	}
	if name == "" {
		dir, err := absolute(file.dir)
		if err != nil {
			return "", err
		}
		name = filepath.Base(dir)
	}
	name = strings.Trim(notInName.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if name == "" {
		return "", fmt.Errorf("run: folder %s: its name is none for an image; give the Agentfile a NAME", file.dir)
	}
	return name + ":latest", nil
}

func (a *app) imagesCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List the images in the daemon's registry",
		Long:  "List the images in the daemon's registry." + jsonHelp("a list of objects", imageJSON{}),
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				images, err := c.Images(cmd.Context())
				if err != nil {
					return err
				}
				return a.printImages(images, f)
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

func (a *app) printImages(images []*daemonv1.Image, f format) error {
	if f == formatJSON {
		out := []imageJSON{}
		for _, i := range images {
			out = append(out, newImageJSON(i))
		}
		return printJSON(a.out, out)
	}
	var rows [][]string
	for _, i := range images {
		rows = append(rows, []string{i.GetReference(), i.GetKind(), short(i.GetDigest()), size(i.GetSize()), created(i.GetCreatedAt())})
	}
	return printTable(a.out, []string{"IMAGE", "KIND", "DIGEST", "SIZE", "AGE"}, rows)
}

// short cuts a digest to what tells it from others at a glance.
func short(digest string) string {
	const keep = len("sha256:") + 12
	if len(digest) > keep {
		return digest[:keep]
	}
	return digest
}
