// Command protogen generates the Go code of the wire contracts. It compiles every .proto file
// below the folder given with -root and runs the three code generators over the result, so that
// nothing but Go is needed. Files are written beside their source.
//
// Usage, in the folder of the module that holds the tools: protogen -root ../../proto
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// generator is a code generator that speaks the protoc plugin protocol on its standard streams.
type generator struct {
	tool  string
	param string
	// under keeps it to the files below this folder.
	under string
}

var generators = []generator{
	{tool: "protoc-gen-go", param: "paths=source_relative"},
	{tool: "protoc-gen-go-grpc", param: "paths=source_relative"},
	// Runtimes speak gRPC alone; only the daemon's API is also served over HTTP/1.1.
	{tool: "protoc-gen-connect-go", param: "paths=source_relative,simple=true", under: "otters/daemon/"},
}

func main() {
	root := flag.String("root", "proto", "folder that import paths start from")
	flag.Parse()
	if err := run(context.Background(), *root); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string) error {
	files, err := protoFiles(root)
	if err != nil {
		return err
	}
	req, err := compile(ctx, root, files)
	if err != nil {
		return err
	}
	for _, g := range generators {
		if err := g.run(ctx, req, root); err != nil {
			return fmt.Errorf("%s: %w", g.tool, err)
		}
	}
	return nil
}

func protoFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".proto" {
			return err
		}
		rel, err := filepath.Rel(root, path)
		files = append(files, filepath.ToSlash(rel))
		return err
	})
	sort.Strings(files)
	return files, err
}

func compile(ctx context.Context, root string, files []string) (*pluginpb.CodeGeneratorRequest, error) {
	c := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	linked, err := c.Compile(ctx, files...)
	if err != nil {
		return nil, err
	}
	req := &pluginpb.CodeGeneratorRequest{FileToGenerate: files}
	for _, f := range linked {
		var fd descriptorpb.FileDescriptorProto
		raw, err := proto.Marshal(protoutil.ProtoFromFileDescriptor(f))
		if err != nil {
			return nil, err
		}
		// Through the wire form: the generators must see a plain message, not the compiler's own.
		if err := proto.Unmarshal(raw, &fd); err != nil {
			return nil, err
		}
		req.ProtoFile = append(req.ProtoFile, &fd)
	}
	return req, nil
}

func (g generator) run(ctx context.Context, req *pluginpb.CodeGeneratorRequest, root string) error {
	all := req.FileToGenerate
	defer func() { req.FileToGenerate = all }()
	req.FileToGenerate = nil
	for _, f := range all {
		if strings.HasPrefix(f, g.under) {
			req.FileToGenerate = append(req.FileToGenerate, f)
		}
	}
	req.Parameter = proto.String(g.param)
	in, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	var out, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "tool", g.tool)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, stderr.String())
	}
	var res pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out.Bytes(), &res); err != nil {
		return err
	}
	if res.Error != nil {
		return errors.New(res.GetError())
	}
	for _, f := range res.File {
		path := filepath.Join(root, filepath.FromSlash(f.GetName()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
