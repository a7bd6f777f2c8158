package agentruntime_test

// Invariant: a client that has no proto finds every service that is served, and each file it gets
// stands alone. Worst inputs: a symbol that is not there, a file that is linked but not served.

import (
	"context"
	"testing"

	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

func TestReflectionDescribesEveryService(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	a.serve()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := reflectionv1.NewServerReflectionClient(a.dial()).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
		t.Helper()
		if err := s.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	symbol := func(name string) *reflectionv1.ServerReflectionResponse {
		return ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name}})
	}
	list := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	services := list.GetListServicesResponse().GetService()
	if len(services) != 3 {
		t.Errorf("services %v", services)
	}
	for _, svc := range services {
		files := symbol(svc.GetName()).GetFileDescriptorResponse().GetFileDescriptorProto()
		if len(files) != 1 {
			t.Fatalf("%s: %d files", svc.GetName(), len(files))
		}
		var fd descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(files[0], &fd); err != nil {
			t.Fatal(err)
		}
		if fd.GetPackage()+"."+fd.GetService()[0].GetName() != svc.GetName() || len(fd.GetDependency()) != 0 {
			t.Errorf("%s is described by %s, which imports %v", svc.GetName(), fd.GetName(), fd.GetDependency())
		}
		byName := ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: fd.GetName()}})
		if len(byName.GetFileDescriptorResponse().GetFileDescriptorProto()) != 1 {
			t.Errorf("file %s: %v", fd.GetName(), byName)
		}
	}
	if r := symbol("openotters.agent.v1.AgentRuntime.ChatStream"); r.GetFileDescriptorResponse() == nil {
		t.Errorf("a method: %v", r)
	}
	for _, name := range []string{"no.such.Service", "", "google.protobuf.FileDescriptorProto"} {
		if r := symbol(name); r.GetErrorResponse() == nil {
			t.Errorf("symbol %q: %v", name, r)
		}
	}
}
