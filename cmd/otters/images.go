package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
)

func (a *app) buildCommand() *cobra.Command {
	var tags, args []string
	var file string
	cmd := &cobra.Command{
		Use:   "build -t NAME[:TAG] [flags] DIR",
		Short: "Build an agent image from a folder with an Agentfile",
		Long: fmt.Sprintf(`Build an agent image from a folder with an Agentfile, and store it in the daemon's registry.

The folder is sent to the daemon: its files, folders and symlinks (as symlinks), at most %d of
them and %s. A socket, device or named pipe in it is an error.`, client.MaxArchiveEntries, size(client.MaxArchiveBytes)),
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			if len(tags) == 0 {
				return usagef("build: no name for the image; give one with -t NAME")
			}
			values, err := keyValues("--build-arg", args)
			if err != nil {
				return err
			}
			root, err := os.OpenRoot(dirs[0])
			if err != nil {
				return folderError(dirs[0], err)
			}
			defer root.Close()
			opts := client.BuildOptions{Tags: tags, File: file, Args: map[string]string{}, Source: root.FS()}
			for _, kv := range values {
				opts.Args[kv[0]] = kv[1]
			}
			return a.with(cmd.Context(), func(c *client.Client) error { return a.build(cmd, c, opts, dirs[0]) })
		},
	}
	cmd.Flags().StringArrayVarP(&tags, "tag", "t", nil, "`name[:tag]` of the image; may be given several times")
	cmd.Flags().StringVarP(&file, "file", "f", "Agentfile", "`path` of the Agentfile in the folder")
	cmd.Flags().StringArrayVar(&args, "build-arg", nil, "`K=V` for an ARG; K alone takes the value from the environment; may be given several times")
	return cmd
}

func folderError(dir string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("build: folder %s: %w; name the folder with the Agentfile", dir, err)
}

func (a *app) build(cmd *cobra.Command, c *client.Client, opts client.BuildOptions, dir string) error {
	r, err := c.Build(cmd.Context(), opts)
	if errors.Is(err, client.ErrArchive) {
		return fmt.Errorf("build %s: %w", dir, err)
	}
	if err != nil {
		return agentfileError{err}
	}
	for _, w := range r.GetWarnings() {
		fmt.Fprintln(a.err, "warning: "+oneLine(w))
	}
	l := lines{w: a.out}
	for _, ref := range r.GetReferences() {
		l.printf("%s %s\n", neutral(ref, false), neutral(r.GetDigest(), false))
	}
	return l.err
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
				if f == formatJSON {
					out := []imageJSON{}
					for _, i := range images {
						out = append(out, newImageJSON(i))
					}
					return printJSON(a.out, out)
				}
				var rows [][]string
				for _, i := range images {
					created := ""
					if i.GetCreatedAt() != 0 {
						created = age(time.Unix(i.GetCreatedAt(), 0), time.Now())
					}
					rows = append(rows, []string{i.GetReference(), i.GetKind(), short(i.GetDigest()), size(i.GetSize()), created})
				}
				return printTable(a.out, []string{"IMAGE", "KIND", "DIGEST", "SIZE", "AGE"}, rows)
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

// short cuts a digest to what tells it from others at a glance.
func short(digest string) string {
	const keep = len("sha256:") + 12
	if len(digest) > keep {
		return digest[:keep]
	}
	return digest
}
