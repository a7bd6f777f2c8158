package agentruntime

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	// outputDir is where outputs are kept that are too long for the model, below the working folder.
	outputDir = "tool-output"
	// maxKept bounds one kept output, in bytes, and maxKeptFiles how many there are: the oldest go.
	maxKept      = 64 << 20
	maxKeptFiles = 64
)

// outputs keeps long outputs in the working folder.
type outputs struct {
	dir   string // the working folder
	limit int    // bytes of each stream that the model gets
	mu    sync.Mutex
}

// create makes a file for an output. The agent's tools can write in the folder: nothing outside of it
// is touched, whatever they have put there.
func (o *outputs) create() (f *os.File, name string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	root, err := os.OpenRoot(o.dir)
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	if err := root.Mkdir(outputDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, "", err
	}
	if err := prune(root); err != nil {
		return nil, "", err
	}
	name = path.Join(outputDir, strings.ToLower(rand.Text())+".txt")
	f, err = root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, err
}

// prune makes room for one more file.
func prune(root *os.Root) error {
	d, err := root.Open(outputDir)
	if err != nil {
		return err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	type kept struct {
		name string
		age  int64
	}
	var files []kept
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && strings.HasSuffix(e.Name(), ".txt") {
			files = append(files, kept{e.Name(), info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(files, func(a, b kept) int { return int(min(1, max(-1, a.age-b.age))) })
	for len(files) >= maxKeptFiles {
		if err := root.Remove(path.Join(outputDir, files[0].name)); err != nil {
			return err
		}
		files = files[1:]
	}
	return nil
}

// output is one stream of a tool: it holds head and tail, and of a longer one all is in a file.
type output struct {
	keep *outputs
	size int64
	head []byte // the first bytes, all of them up to the limit
	tail []byte // the last bytes, at most twice half the limit
	file *os.File
	name string
	err  error // why the rest is not kept
}

// Write never fails: a tool is not to break for what the model does not get.
func (o *output) Write(p []byte) (int, error) {
	n := len(p)
	o.size += int64(n)
	if o.file == nil && o.err == nil {
		if len(o.head)+n <= o.keep.limit {
			o.head = append(o.head, p...)
			return n, nil
		}
		fill := o.keep.limit - len(o.head)
		o.head, p = append(o.head, p[:fill]...), p[fill:]
		o.spill()
	}
	o.save(p)
	half := o.keep.limit / 2
	o.tail = append(o.tail, p[max(0, len(p)-half):]...)
	if len(o.tail) > 2*half {
		o.tail = append(o.tail[:0], o.tail[len(o.tail)-half:]...)
	}
	return n, nil
}

// spill starts the file with what is there, and leaves the head.
func (o *output) spill() {
	o.file, o.name, o.err = o.keep.create()
	o.save(o.head)
	half := o.keep.limit / 2
	o.tail = append(o.tail, o.head[min(len(o.head), half):]...)
	o.head = o.head[:min(len(o.head), half)]
}

func (o *output) save(p []byte) {
	if o.err != nil || o.file == nil {
		return
	}
	if o.size > maxKept {
		o.err = fmt.Errorf("it is longer than %d bytes", maxKept)
		return
	}
	_, o.err = o.file.Write(p)
}

func (o *output) close() {
	if o.file == nil {
		return
	}
	if err := o.file.Close(); err != nil && o.err == nil {
		o.err = err
	}
}

// text is what the model gets, cut between characters. It is called after close.
func (o *output) text() string {
	if o.file == nil && o.err == nil {
		return string(o.head)
	}
	tail := o.tail[max(0, len(o.tail)-o.keep.limit/2):]
	head, tail := wholeEnd(o.head), wholeStart(tail)
	where := "all of it is in " + filepath.Join(o.keep.dir, o.name)
	switch {
	case o.err != nil && o.name != "":
		where = "a part is in " + filepath.Join(o.keep.dir, o.name) + ": " + o.err.Error()
	case o.err != nil:
		where = "the rest could not be kept: " + o.err.Error()
	}
	note := fmt.Sprintf("[cut: the first %d and the last %d of %d bytes; %s]\n", len(head), len(tail), o.size, where)
	return join(string(head), note) + string(tail)
}

// wholeEnd drops a character that is cut at the end.
func wholeEnd(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if utf8.RuneStart(b[len(b)-i]) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// wholeStart drops the rest of a character that is cut at the start.
func wholeStart(b []byte) []byte {
	for i := 0; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}
