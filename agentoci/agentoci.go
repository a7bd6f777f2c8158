// Package agentoci turns an Agentfile and its build folder into an OCI artifact and back, and reads
// and writes the images that runtimes and tools come in.
//
// Everything read from outside is bounded and its digest checked before it is believed: a caller
// never gets bytes, a path or a size that were not. Nothing is tagged before all of it is stored.
// Every function takes the store it works on and may be called from several goroutines at once; none
// but Programs keeps state. docs/image-format.md is the format's reference.
package agentoci

import (
	"context"
	"errors"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/spec"
)

// Media types of an agent's artifact, and the artifact type of a BIN or RUNTIME image.
const (
	ArtifactTypeAgent = "application/vnd.openotters.agent.v1"
	ArtifactTypeBin   = "application/vnd.openotters.bin.v1"

	MediaTypeConfig    = "application/vnd.openotters.agent.config.v1+json"
	MediaTypeAgentfile = "application/vnd.openotters.agentfile"
	MediaTypeContext   = "application/vnd.openotters.context.v1"
	MediaTypeFile      = "application/octet-stream"
	MediaTypeSkill     = "application/vnd.openotters.skill.v1.tar"
	MediaTypeMarkdown  = "text/markdown"
)

// Annotations. Those of a BIN image have one of two prefixes, of which the first wins.
const (
	AnnotationChain    = "io.openotters.base.chain"
	AnnotationListener = "io.openotters.runtime.listener"

	binPrefix      = "io.openotters.bin."
	binPrefixOlder = "vnd.openotters.bin."
)

// Bounds on what is read from a store or an archive.
const (
	// maxManifest is what registries take as a manifest.
	maxManifest = 4 << 20
	// maxConfig holds the texts of all contexts of an agent.
	maxConfig = 16 << 20
	// maxUsage is the bound of the language on a usage text.
	maxUsage = spec.MaxContent
	// maxBlob is what the embedded registry takes as one blob.
	maxBlob = 16 << 30
	// maxFile is one ADD file or one binary.
	maxFile = spec.MaxFile
	// maxUnpacked is all layers of a BIN image, decompressed; maxEntries their entries.
	maxUnpacked = 2 << 30
	maxEntries  = 200_000
	// maxName is the length of an entry's name, maxNesting the folders in it, and maxNames the names
	// of an archive or image together, since they are kept in memory.
	maxName    = 1024
	maxNesting = 100
	maxNames   = 64 << 20
	// maxLayers is more than container engines take.
	maxLayers = 256
	// maxLinks is how many symlinks are followed on the way to a file, as in the kernel.
	maxLinks = 40
)

var (
	// ErrNotAgent is wrapped when an image is no agent.
	ErrNotAgent = errors.New("not an agent image")
	// ErrNotBin is wrapped when an image is no BIN or RUNTIME image.
	ErrNotBin = errors.New("not a BIN or RUNTIME image")
	// ErrNoPlatform is wrapped when an image has nothing for the platform that was asked for.
	ErrNoPlatform = errors.New("no such platform")
	// ErrLimit is wrapped when something is larger, longer or deeper than what is read.
	ErrLimit = errors.New("over the limit")
	// ErrUnsafe is wrapped when an archive or a layer has an entry that is refused.
	ErrUnsafe = errors.New("unsafe entry")
	// ErrChain is wrapped when the parents of an image are too many, or one of them is there twice.
	ErrChain = errors.New("chain of FROM")
)

// Puller writes the binary of the BIN or RUNTIME image ref to w. What was written may be used only
// when the error is nil: a digest is known to be right after its last byte.
type Puller func(ctx context.Context, ref spec.Reference, w io.Writer) error

// Identifier tells which bytes the binary of the BIN or RUNTIME image ref is, without reading it out.
type Identifier func(ctx context.Context, ref spec.Reference) (BinaryInfo, error)

// UsageFetcher reads the usage text of the BIN image ref. It is empty for an image without one.
type UsageFetcher func(ctx context.Context, ref spec.Reference) (string, error)

// LabelReader reads the labels and annotations of the BIN or RUNTIME image ref.
type LabelReader func(ctx context.Context, ref spec.Reference) (map[string]string, error)

// Opener says in which store the image ref is and what it is called there.
type Opener func(ctx context.Context, ref spec.Reference) (store oras.ReadOnlyTarget, name string, err error)

func title(desc ocispec.Descriptor) string { return desc.Annotations[ocispec.AnnotationTitle] }
