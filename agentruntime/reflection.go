package agentruntime

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// reflection answers gRPC server reflection from the descriptors that generated code carries. The
// library's own would link the whole of descriptor.proto: half a millisecond of every start of an agent.
type reflection struct {
	reflectionv1.UnimplementedServerReflectionServer

	services func() map[string]grpc.ServiceInfo
}

func registerReflection(srv *grpc.Server) {
	reflectionv1.RegisterServerReflectionServer(srv, reflection{services: srv.GetServiceInfo})
}

// compressed are the served files' descriptors by path; none imports another.
func compressed() map[string][]byte {
	//lint:ignore SA1019 what is to be used instead costs what this package saves
	agent, _ := (*agentv1.ReadyRequest)(nil).Descriptor()
	//lint:ignore SA1019 as above
	health, _ := (*healthv1.HealthCheckRequest)(nil).Descriptor()
	//lint:ignore SA1019 as above
	own, _ := (*reflectionv1.ServerReflectionRequest)(nil).Descriptor()
	return map[string][]byte{
		agentv1.File_openotters_agent_v1_agent_proto.Path():          agent,
		healthv1.File_grpc_health_v1_health_proto.Path():             health,
		reflectionv1.File_grpc_reflection_v1_reflection_proto.Path(): own,
	}
}

// ServerReflectionInfo answers one request after the other.
func (r reflection) ServerReflectionInfo(stream reflectionv1.ServerReflection_ServerReflectionInfoServer) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp := &reflectionv1.ServerReflectionResponse{ValidHost: req.GetHost(), OriginalRequest: req}
		r.answer(req, resp)
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (r reflection) answer(req *reflectionv1.ServerReflectionRequest, resp *reflectionv1.ServerReflectionResponse) {
	var err error
	var file []byte
	switch m := req.GetMessageRequest().(type) {
	case *reflectionv1.ServerReflectionRequest_ListServices:
		list := &reflectionv1.ListServiceResponse{}
		for _, name := range slices.Sorted(maps.Keys(r.services())) {
			list.Service = append(list.Service, &reflectionv1.ServiceResponse{Name: name})
		}
		resp.MessageResponse = &reflectionv1.ServerReflectionResponse_ListServicesResponse{ListServicesResponse: list}
		return
	case *reflectionv1.ServerReflectionRequest_FileByFilename:
		file, err = descriptorOf(m.FileByFilename)
	case *reflectionv1.ServerReflectionRequest_FileContainingSymbol:
		file, err = descriptorWith(m.FileContainingSymbol)
	default:
		err = errors.New("nothing here has extensions")
	}
	if err != nil {
		resp.MessageResponse = &reflectionv1.ServerReflectionResponse_ErrorResponse{ErrorResponse: &reflectionv1.ErrorResponse{
			ErrorCode: int32(codes.NotFound), ErrorMessage: err.Error(),
		}}
		return
	}
	resp.MessageResponse = &reflectionv1.ServerReflectionResponse_FileDescriptorResponse{
		FileDescriptorResponse: &reflectionv1.FileDescriptorResponse{FileDescriptorProto: [][]byte{file}},
	}
}

// descriptorWith is the file that declares a service, method or message.
func descriptorWith(symbol string) ([]byte, error) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(symbol))
	if err != nil {
		return nil, fmt.Errorf("symbol %q is not served", symbol)
	}
	return descriptorOf(d.ParentFile().Path())
}

func descriptorOf(path string) ([]byte, error) {
	gz, ok := compressed()[path]
	if !ok {
		return nil, fmt.Errorf("file %q is not served", path)
	}
	r, err := gzip.NewReader(bytes.NewReader(gz))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
