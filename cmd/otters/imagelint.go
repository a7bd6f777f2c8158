package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	"github.com/otters-sh/otters/spec"
)

// agentfile is an Agentfile that a command of this program reads itself.
type agentfile struct {
	// name is what problems call it, dir its build folder: empty for one from standard input.
	name, dir string
	text      []byte
}

// readAgentfile reads the Agentfile of a folder, a file, or standard input for "-".
func (a *app) readAgentfile(path string) (agentfile, error) {
	if path == "-" {
		text, err := readBounded(a.in, "standard input")
		return agentfile{name: "-", text: text}, err
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		path = filepath.Join(path, "Agentfile")
		info, err = os.Stat(path)
	}
	var at *os.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	switch {
	case err != nil:
		return agentfile{}, fmt.Errorf("%s: %w; name an Agentfile or a folder with one", path, err)
	case !info.Mode().IsRegular():
		return agentfile{}, fmt.Errorf("%s: not a regular file; name an Agentfile or a folder with one", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return agentfile{}, err
	}
	text, err := readBounded(f, path)
	return agentfile{name: path, dir: filepath.Dir(path), text: text}, errors.Join(err, f.Close())
}

func readBounded(r io.Reader, name string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, spec.MaxSource+1))
	if err != nil {
		return nil, err
	}
	if len(text) > spec.MaxSource {
		return nil, fmt.Errorf("%s: larger than %d bytes, so no Agentfile; name another", name, spec.MaxSource)
	}
	return text, nil
}

func (a *app) lintCommand() *cobra.Command {
	var f format
	var args []string
	cmd := &cobra.Command{
		Use:   "lint [flags] [FILE|DIR|-]",
		Short: "Tell everything that is wrong with an Agentfile",
		Long: `Tell everything that is wrong with an Agentfile and with the files that it names, each with its line:
what is not there or left out by .agentignore, is no file, or is over its bound.

Without an argument it reads the Agentfile of this folder. With - it reads standard input, and looks
at no files. No daemon is needed. The exit code is 1 when something is wrong.` + jsonHelp("a list of objects", spec.Problem{}),
		Args: between(0, 1),
		RunE: func(_ *cobra.Command, given []string) error {
			values, err := keyValues("--build-arg", args)
			if err != nil {
				return err
			}
			file, err := a.readAgentfile(append(given, ".")[0])
			if err != nil {
				return err
			}
			return a.lint(file, values, f)
		},
	}
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
		if opts.Folder, err = client.Folder(root.FS(), filepath.Base(file.name)); err != nil {
			return err
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
		Use:   "fmt [flags] [FILE|DIR|-]",
		Short: "Write an Agentfile in its one form",
		Long: `Write an Agentfile in its one form: keywords in capitals, one blank between words, at most one empty
line in a row. Comments and texts stay as they are, and so does what the file says.

Without an argument it formats the Agentfile of this folder, with - standard input to standard
output. No daemon is needed.`,
		Args: between(0, 1),
		RunE: func(_ *cobra.Command, given []string) error {
			file, err := a.readAgentfile(append(given, ".")[0])
			if err != nil {
				return err
			}
			printed, err := spec.Format(file.name, file.text)
			var wrong *spec.SyntaxError
			if errors.As(err, &wrong) {
				l := lines{w: a.err}
				l.printf("%s\n", neutral(wrong.Error(), true))
				return errors.Join(l.err, exitCode(exitFailed))
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
