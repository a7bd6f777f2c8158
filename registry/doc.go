// Package registry is an OCI registry over a content store on disk: an oras target in process, and
// the distribution API, version 1.1, over HTTP. It imports none of ours; any program may embed it.
//
// A store is one folder. Its SQLite database holds the metadata, all manifests and the blobs of up
// to 64 KiB as rows; each larger blob is a file beside it. Every write passes one committer, which
// groups what waits into one transaction and one sync.
//
// Invariant: content is visible only once it is whole, its digest verified and it is durable, and
// what was acknowledged is never lost: a file is synced, renamed into place and its folder synced
// before the row that makes it visible is committed, and a call returns after the commit. A manifest
// is visible only while what it refers to was in the store when it was pushed.
//
// Content is addressed by sha256 or sha512. A repository sees only what was pushed to it, mounted
// into it or tagged in it, however much else the store holds.
package registry
