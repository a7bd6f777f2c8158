//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/registry"
	"github.com/otters-sh/otters/spec"
)

const (
	benchAdds = 50
	// benchAddBytes is more than the registry keeps as a row.
	benchAddBytes = 128 << 10
)

// benchBuild measures the language and the building of images, without the programs.
func benchBuild(ctx context.Context, _ *built, runs int) (_ []row, err error) {
	dir, err := os.MkdirTemp("", "otters-bench-build-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := registry.Open(filepath.Join(dir, "store"), registry.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	rows, err := parseRows(runs)
	if err != nil {
		return nil, err
	}
	more, err := buildRows(ctx, store, min(runs, 20))
	if err != nil {
		return nil, err
	}
	memory, err := memoryRows(ctx, store, dir)
	return append(append(rows, more...), memory...), err
}

// mebibyte is an Agentfile of 1 MiB with as many instructions as the language takes.
func mebibyte() []byte {
	var b strings.Builder
	b.WriteString("FROM scratch\nNAME large\n")
	const n = 9_000
	for i := range n {
		line := fmt.Sprintf("LABEL key-%d=\"value %d\"", i, i)
		b.WriteString(line[:len(line)-1] + strings.Repeat("x", (1<<20)/n-len(line)-1) + "\"\n")
	}
	return []byte(b.String())
}

func parseRows(runs int) ([]row, error) {
	src := mebibyte()
	var floor, parse, format samples
	var before, after runtime.MemStats
	for range runs {
		start := time.Now()
		lines := 0
		for line := range bytes.Lines(src) {
			if utf8.Valid(line) {
				lines++
			}
		}
		floor = append(floor, time.Since(start))
		start = time.Now()
		runtime.ReadMemStats(&before)
		if _, err := spec.Parse("Agentfile", src, spec.ParseOptions{}); err != nil {
			return nil, err
		}
		runtime.ReadMemStats(&after)
		parse = append(parse, time.Since(start))
		start = time.Now()
		if _, err := spec.Format("Agentfile", src); err != nil {
			return nil, err
		}
		format = append(format, time.Since(start))
	}
	return []row{
		floor.row("1 MiB read line by line as UTF-8, p50", .5),
		parse.row("1 MiB Agentfile of 9,002 instructions parsed, p50", .5).under(50),
		{Name: "its allocations", Value: float64(after.Mallocs - before.Mallocs), Unit: "allocations"},
		{Name: "its allocated memory", Value: float64(after.TotalAlloc-before.TotalAlloc) / (1 << 20), Unit: "MiB"},
		format.row("the same formatted, p50", .5),
	}, nil
}

// buildFolder is an Agentfile of 200 instructions with its files, whose bytes differ with seed.
func buildFolder(seed uint64) (string, fstest.MapFS) {
	var b strings.Builder
	b.WriteString("FROM scratch\nNAME large\n")
	files := fstest.MapFS{}
	for i := range benchAdds {
		data := bytes.Repeat([]byte{byte(i)}, benchAddBytes)
		binary.LittleEndian.PutUint64(data, seed)
		files[fmt.Sprintf("f%d", i)] = &fstest.MapFile{Data: data, Mode: 0o644}
		fmt.Fprintf(&b, "ADD f%d\nCONFIG k-%d=%d\nENV E_%d=%d\n", i, i, i, i, i)
	}
	for i := range 200 - 2 - 3*benchAdds {
		fmt.Fprintf(&b, "LABEL l-%d=%d\n", i, i)
	}
	return b.String(), files
}

func buildRows(ctx context.Context, store *registry.Store, runs int) ([]row, error) {
	var floor, build samples
	for i := range runs {
		_, files := buildFolder(uint64(2 * i))
		start := time.Now()
		for _, f := range files {
			desc := ocispec.Descriptor{MediaType: agentoci.MediaTypeFile, Digest: digest.FromBytes(f.Data), Size: int64(len(f.Data))}
			if err := store.Push(ctx, desc, bytes.NewReader(f.Data)); err != nil {
				return nil, err
			}
		}
		floor = append(floor, time.Since(start))
		text, files := buildFolder(uint64(2*i + 1))
		start = time.Now()
		if _, err := agentoci.Build(ctx, store, []byte(text), agentoci.BuildOptions{Folder: files, Tags: []string{"large:1"}}); err != nil {
			return nil, err
		}
		build = append(build, time.Since(start))
	}
	stored := floor.row("50 files of 128 KiB stored, p50", .5)
	return []row{stored, build.row("200 instructions with 50 ADD of 128 KiB built, p50", .5).over(stored, 2)}, nil
}

// memoryRows build with a small and a large file from disk.
func memoryRows(ctx context.Context, store *registry.Store, dir string) ([]row, error) {
	one := func(size int64) (row, error) {
		name := fmt.Sprintf("f%d", size)
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return row{}, err
		}
		_, err = f.WriteString(name)
		if err = errors.Join(err, f.Truncate(size), f.Close()); err != nil {
			return row{}, err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = agentoci.Build(ctx, store, []byte("FROM scratch\nADD "+name+" f\n"), agentoci.BuildOptions{Folder: readOnly{os.DirFS(dir)}})
		runtime.ReadMemStats(&after)
		return row{
			Name:  fmt.Sprintf("memory allocated to build with an ADD of %d MiB", size>>20),
			Value: float64(after.TotalAlloc-before.TotalAlloc) / (1 << 20), Unit: "MiB",
		}, err
	}
	small, err := one(1 << 20)
	if err != nil {
		return nil, err
	}
	large, err := one(512 << 20)
	return []row{small, large.over(small, 2)}, err
}

// readOnly hides what else a file can do, as a build folder's archive does.
type readOnly struct{ fs.FS }

func (r readOnly) Open(name string) (fs.File, error) {
	f, err := r.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
		stat
	}{f, f, f}, nil
}

type stat interface{ Stat() (fs.FileInfo, error) }
