package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	"github.com/otters-sh/otters/spec"
)

// agentfile is an Agentfile that a command of this program reads itself.
type agentfile struct {
	// name is what problems call it, dir its build folder, empty for one from standard input alone, and file its
	// path there.
	name, dir, file string
	text            []byte
}

// place tells the build folder and the path of the Agentfile in it. given is the folder, or else the Agentfile,
// which stands for the folder that it lies in; file is that of -f, empty without one.
func place(what, given, file string) (dir, path string, err error) {
	info, err := os.Stat(given)
	switch {
	case err != nil:
		return "", "", fmt.Errorf("%s: %w; name an Agentfile or a folder with one", what, ofFile(given, err))
	case !info.IsDir() && !info.Mode().IsRegular():
		return "", "", fmt.Errorf("%s: %s: %w, nor a folder; name an Agentfile or a folder with one", what, given, errNotRegular)
	case info.Mode().IsRegular() && file == "":
		return filepath.Dir(given), filepath.Base(given), nil
	case info.Mode().IsRegular():
		return "", "", usagef("%s: %s is a file, and -f names one of a folder; leave out -f, or name the folder", what, given)
	case file == "":
		file = "Agentfile"
	}
	return given, file, nil
}

// readAgentfile reads the Agentfile of a folder, a file, or standard input for "-". file is that of -f.
func (a *app) readAgentfile(ctx context.Context, what, given, file string) (agentfile, error) {
	switch {
	case given == "-" && file != "":
		return agentfile{}, usagef("%s: standard input is the Agentfile, and -f names another; name the folder, or leave out -f", what)
	case given == "-" || file == "-":
		text, err := a.agentfileText(ctx, a.in, what)
		if given == "-" {
			given = ""
		}
		return agentfile{name: "-", dir: given, file: "-", text: text}, err
	}
	dir, file, err := place(what, given, file)
	if err != nil {
		return agentfile{}, err
	}
	if !fs.ValidPath(file) {
		return agentfile{}, usagef("%s: -f %s: not a path inside the folder; name one relative to the folder, such as sub/Agentfile", what, file)
	}
	name := filepath.Join(dir, file)
	text, err := readFile(name, spec.MaxSource)
	if err != nil {
		return agentfile{}, fmt.Errorf("%s: %w; name an Agentfile or a folder with one", what, err)
	}
	return agentfile{name: name, dir: dir, file: file, text: text}, nil
}

// agentfileText is the Agentfile that standard input is.
func (a *app) agentfileText(ctx context.Context, in io.Reader, what string) ([]byte, error) {
	text, err := readText(ctx, in, what, spec.MaxSource)
	if err == nil && len(text) > spec.MaxSource {
		err = fmt.Errorf("%s: standard input: larger than %d bytes, so no Agentfile; name another", what, spec.MaxSource)
	}
	return []byte(text), err
}

func (a *app) lintCommand() *cobra.Command {
	var f format
	var args []string
	var path string
	cmd := &cobra.Command{
		Use:   "lint [flags] [DIR|FILE|-]",
		Short: "Tell everything that is wrong with an Agentfile",
		Long: `Tell everything that is wrong with an Agentfile and with the files that it names, each with its line:
what is not there or left out by .agentignore, is no file, or is over its bound.

Folder and Agentfile are those of "otters build": of a FILE the folder that it lies in is the build
folder, and with -f another one may be. Without an argument it is this folder. With - it reads
standard input, and looks at no files. No daemon is needed. The exit code is 1 when something is wrong.` + jsonHelp("a list of objects", spec.Problem{}),
		Args: between(0, 1),
		RunE: func(cmd *cobra.Command, given []string) error {
			values, err := keyValues("--build-arg", args)
			if err != nil {
				return err
			}
			file, err := a.readAgentfile(cmd.Context(), "lint", append(given, ".")[0], path)
			if err != nil {
				return err
			}
			return a.lint(file, values, f)
		},
	}
	fileFlag(cmd, &path)
	cmd.Flags().StringArrayVar(&args, "build-arg", nil, "`K=V` for an ARG; K alone takes the value from the environment; may be given several times")
	addFormat(cmd, &f)
	return cmd
}

func (a *app) lint(file agentfile, values [][2]string, f format) error {
	args := map[string]string{}
	for _, kv := range values {
		args[kv[0]] = kv[1]
	}
	opts := spec.ParseOptions{Args: args}
	if file.dir != "" {
		root, err := os.OpenRoot(file.dir)
		if err != nil {
			return folderError("lint", file.dir, err)
		}
		defer root.Close()
		if _, err := root.Stat(file.file); err != nil && file.name != "-" {
			return folderError("lint", file.dir, err)
		}
		if opts.Folder, err = client.Folder(root.FS(), file.file); err != nil {
			return fmt.Errorf("lint %s: %w", file.dir, err)
		}
	}
	_, err := spec.Parse(file.name, file.text, opts)
	problems, omitted := []spec.Problem{}, 0
	var wrong *spec.SyntaxError
	switch {
	case errors.As(err, &wrong):
		problems, omitted = wrong.Problems, wrong.Omitted
	case err != nil:
		return err
	}
	if f == formatJSON {
		err = printJSON(a.out, problems)
	} else {
		l := lines{w: a.out}
		for _, p := range problems {
			l.printf("%s\n", neutral(p.String(), true))
		}
		if omitted > 0 {
			l.printf("and %d more\n", omitted)
		}
		err = l.err
	}
	if err == nil && len(problems) > 0 {
		return exitCode(exitFailed)
	}
	return err
}

func (a *app) fmtCommand() *cobra.Command {
	var checkOnly bool
	cmd := &cobra.Command{
		Use:   "fmt [flags] [DIR|FILE|-]",
		Short: "Write an Agentfile in its one form",
		Long: `Write an Agentfile in its one form: keywords in capitals, one blank between words, at most one empty
line in a row. Comments and texts stay as they are, and so does what the file says.

Without an argument it formats the Agentfile of this folder, with - standard input to standard
output. No daemon is needed.`,
		Args: between(0, 1),
		RunE: func(cmd *cobra.Command, given []string) error {
			file, err := a.readAgentfile(cmd.Context(), "fmt", append(given, ".")[0], "")
			if err != nil {
				return err
			}
			printed, err := spec.Format(file.name, file.text)
			var wrong *spec.SyntaxError
			if errors.As(err, &wrong) {
				return agentfileError{wrong}
			}
			switch same := bytes.Equal(printed, file.text); {
			case err != nil:
				return err
			case checkOnly && !same:
				return fmt.Errorf("%s: not in its one form; run `otters image fmt %s`", file.name, file.name)
			case checkOnly:
				return nil
			case file.dir == "":
				_, err := a.out.Write(printed)
				return err
			case same:
				return nil
			}
			return replaceFile(file.name, printed)
		},
	}
	cmd.Flags().BoolVar(&checkOnly, "check", false, "write nothing; exit code 1 when the file would change")
	return cmd
}

// replaceFile writes path whole or not at all, with the mode it has. A link stays one.
func replaceFile(path string, text []byte) (err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".agentfile-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
