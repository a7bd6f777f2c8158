package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
)

// Manifest media types the image-spec package does not name.
const (
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	typeArtifact       = "application/vnd.oci.artifact.manifest.v1+json"
	typeForeignLayer   = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
	prefixNonDist      = "application/vnd.oci.image.layer.nondistributable."
)

const (
	// referenceLimit bounds the lookups one push may cost the committer.
	referenceLimit = 8192
	// depthLimit bounds the nesting of a manifest's JSON; real ones stay below ten.
	depthLimit = 64
)

// errManifest says that a manifest's bytes are not what they claim to be.
var errManifest = errors.New("invalid manifest")

// Kinds of edges.
const (
	edgeBlob     = 0 // config, layer or blob
	edgeManifest = 1 // entry of an index
	edgeSubject  = 2 // may be missing
)

type edge struct {
	desc     ocispec.Descriptor
	kind     int
	required bool
}

// manifest is a checked manifest.
type manifest struct {
	mediaType    string
	digest       digest.Digest
	data         []byte
	artifactType string
	annotations  string // a JSON object, or ""
	subject      digest.Digest
	edges        []edge
}

// isManifest tells the media types whose content in-process callers push as manifests.
func isManifest(mediaType string) bool {
	switch mediaType {
	case ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, typeArtifact, typeDockerManifest, typeDockerList:
		return true
	}
	return false
}

// document has the fields of every kind of manifest. A pointer or nil slice is a missing field.
type document struct {
	SchemaVersion int                  `json:"schemaVersion"`
	MediaType     string               `json:"mediaType"`
	ArtifactType  string               `json:"artifactType"`
	Config        *ocispec.Descriptor  `json:"config"`
	Layers        []ocispec.Descriptor `json:"layers"`
	Blobs         []ocispec.Descriptor `json:"blobs"`
	Manifests     []ocispec.Descriptor `json:"manifests"`
	Subject       *ocispec.Descriptor  `json:"subject"`
	Annotations   map[string]string    `json:"annotations"`
}

// CheckManifest tells what a Store refuses data for, pushed as the manifest or index that desc describes.
// That what it refers to is there is seen when it is pushed. The error of one that is too large wraps
// errdef.ErrSizeExceedsLimit.
func CheckManifest(desc ocispec.Descriptor, data []byte) error {
	if len(data) > manifestLimit {
		return fmt.Errorf("manifest of %d bytes, at most %d are allowed: %w", len(data), manifestLimit, errdef.ErrSizeExceedsLimit)
	}
	_, err := parseManifest(desc.MediaType, desc.Digest, data)
	return err
}

// parseManifest checks data, declared as contentType, against its kind. What it refers to is
// checked at the commit. A media type unknown here is kept as it is: only its references are
// noted, where it has the usual ones.
func parseManifest(contentType string, d digest.Digest, data []byte) (*manifest, error) {
	mediaType, err := manifestType(contentType)
	if err != nil {
		return nil, err
	}
	m := &manifest{mediaType: mediaType, digest: d, data: data}
	var doc document
	known := isManifest(mediaType)
	if err := decodeManifest(data, &doc); err != nil {
		if known {
			return nil, err
		}
		return m, nil
	}
	if err := doc.check(mediaType, known); err != nil {
		return nil, fmt.Errorf("%w: %w", errManifest, err)
	}
	m.edges = doc.edges(known)
	if len(m.edges) > referenceLimit {
		return nil, fmt.Errorf("%w: refers to %d contents, at most %d are allowed", errManifest, len(m.edges), referenceLimit)
	}
	for i, e := range m.edges {
		if err := checkDescriptor(e.desc); err != nil {
			if known {
				return nil, fmt.Errorf("%w: descriptor %d: %w", errManifest, i, err)
			}
			m.edges = nil
			return m, nil
		}
	}
	m.artifactType = doc.ArtifactType
	if m.artifactType == "" && doc.Config != nil {
		m.artifactType = doc.Config.MediaType
	}
	if doc.Subject != nil {
		m.subject = doc.Subject.Digest
	}
	if len(doc.Annotations) > 0 {
		text, err := json.Marshal(doc.Annotations)
		if err != nil {
			return nil, err
		}
		m.annotations = string(text)
	}
	return m, nil
}

// manifestType takes the media type without parameters, as the manifest itself would state it.
func manifestType(contentType string) (string, error) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil || !strings.Contains(mediaType, "/") || len(mediaType) > 255 {
		return "", fmt.Errorf("%w: content type %q is not a media type", errManifest, abbreviate(contentType))
	}
	return mediaType, nil
}

func decodeManifest(data []byte, doc *document) error {
	if err := checkKeys(data); err != nil {
		return fmt.Errorf("%w: %w", errManifest, err)
	}
	if err := json.Unmarshal(data, doc); err != nil {
		return fmt.Errorf("%w: %w", errManifest, err)
	}
	return nil
}

// check refuses a document that another reader may take for another kind (CVE-2021-41190).
func (doc *document) check(mediaType string, known bool) error {
	if doc.MediaType != "" && doc.MediaType != mediaType {
		return fmt.Errorf("its mediaType is %q, it was sent as %q", abbreviate(doc.MediaType), mediaType)
	}
	if !known {
		return nil
	}
	image := doc.Config != nil || doc.Layers != nil
	switch mediaType {
	case ocispec.MediaTypeImageManifest, typeDockerManifest:
		if doc.Manifests != nil || doc.Blobs != nil {
			return fmt.Errorf("%s has manifests or blobs", mediaType)
		}
		if doc.Config == nil {
			return fmt.Errorf("%s without config", mediaType)
		}
	case ocispec.MediaTypeImageIndex, typeDockerList:
		if image || doc.Blobs != nil {
			return fmt.Errorf("%s has config, layers or blobs", mediaType)
		}
	default:
		if image || doc.Manifests != nil {
			return fmt.Errorf("%s has config, layers or manifests", mediaType)
		}
		return nil
	}
	if doc.SchemaVersion != 2 {
		return fmt.Errorf("schemaVersion is %d, want 2", doc.SchemaVersion)
	}
	return nil
}

func (doc *document) edges(known bool) []edge {
	var edges []edge
	add := func(d ocispec.Descriptor, kind int) {
		foreign := d.MediaType == typeForeignLayer || strings.HasPrefix(d.MediaType, prefixNonDist)
		edges = append(edges, edge{desc: d, kind: kind, required: known && kind != edgeSubject && !foreign})
	}
	if doc.Config != nil {
		add(*doc.Config, edgeBlob)
	}
	for _, list := range [][]ocispec.Descriptor{doc.Layers, doc.Blobs} {
		for _, d := range list {
			add(d, edgeBlob)
		}
	}
	for _, d := range doc.Manifests {
		add(d, edgeManifest)
	}
	if doc.Subject != nil {
		add(*doc.Subject, edgeSubject)
	}
	return edges
}

func checkDescriptor(d ocispec.Descriptor) error {
	if err := checkDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 {
		return fmt.Errorf("%s has size %d", d.Digest, d.Size)
	}
	if d.Data != nil && (int64(len(d.Data)) != d.Size || d.Digest.Algorithm().FromBytes(d.Data) != d.Digest) {
		return fmt.Errorf("%s: its data field is other content: %w", d.Digest, errdef.ErrInvalidDigest)
	}
	return nil
}

// checkKeys refuses JSON in which two readers may see two things: a key that occurs twice in an
// object, or two keys of the outermost object that differ in case only.
func checkKeys(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil {
		return err
	} else if t != json.Delim('{') {
		return errors.New("want a JSON object")
	}
	if err := checkObject(dec, 1); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows the JSON object")
	}
	return nil
}

// checkObject reads up to the end of the object whose brace was read.
func checkObject(dec *json.Decoder, depth int) error {
	seen := make(map[string]bool)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		if depth == 1 {
			key = strings.ToLower(key)
		}
		if seen[key] {
			return fmt.Errorf("key %q occurs twice", abbreviate(key))
		}
		seen[key] = true
		if err := checkValue(dec, depth); err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return err
}

func checkValue(dec *json.Decoder, depth int) error {
	t, err := dec.Token()
	if err != nil {
		return err
	}
	delim, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	if depth++; depth > depthLimit {
		return fmt.Errorf("nested deeper than %d", depthLimit)
	}
	if delim == '{' {
		return checkObject(dec, depth)
	}
	for dec.More() {
		if err := checkValue(dec, depth); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}
