// Package wire is what a launcher, a controller and a monitor say to each other: messages of
// named fields over a packet socket, file descriptors beside them. It is kept apart, and free of
// encoding/json and net, because each monitor pays for its imports with resident memory.
//
// Invariant: a field that a peer does not know is ignored, so that a monitor outlives the version
// of the daemon that started it; a change that this can't carry raises Version.
package wire

import (
	"encoding/binary"
	"errors"
	"strconv"
)

const (
	// Version is the first byte of every message.
	Version = 1
	// MaxMessage is the largest message in bytes. The kernel takes up to about 200 KiB as one
	// packet by default; the largest of ours, a record of an exit, is 21 KiB.
	MaxMessage = 64 << 10
	// MaxRequest is the largest message to a monitor in bytes.
	MaxRequest = 4 << 10
	// MaxSpec is the largest encoded Spec in bytes, which is above what the kernel takes as
	// arguments and environment by default.
	MaxSpec = 4 << 20
	// MaxFiles is how many files a program and its monitor are given together; the kernel passes
	// at most 253 descriptors with one message.
	MaxFiles = 128
	// MaxGroups is how many control groups a program enters.
	MaxGroups = 4
)

// Fields of messages.
const (
	ID      = "id"      // number that a request and its reply share
	Op      = "op"      // what a request asks for
	Event   = "event"   // what an unasked message tells
	Error   = "error"   // why a request was refused
	Errno   = "errno"   // the kernel's number for it, where there is one
	Signal  = "signal"  // number of a signal
	Grace   = "grace"   // milliseconds
	Name    = "name"    // of a descriptor, in the order of the descriptors
	Started = "started" // the program runs; with the fields of Status
	HostPID = "hostpid" // of the monitor, which it can't know inside a namespace of process ids
	Limit   = "limit"   // bytes from which on a log takes no more; none without it
	Pidfd   = "pidfd"   // the first descriptor beside the message holds the program
)

// Requests, and the one event.
const (
	OpStatus  = "status"
	OpSignal  = "signal"
	OpStop    = "stop"
	OpFiles   = "files"
	OpLog     = "log" // with the descriptor of the file that takes the log from now on
	EventExit = "exit"
)

// ErrVersion tells that the peer speaks another version.
var ErrVersion = errors.New("monitor speaks another version of the protocol")

var errMalformed = errors.New("malformed message")

type field struct{ key, value string }

// Message is a list of named fields; a name may occur more than once.
type Message struct{ fields []field }

// Add appends a field. Keys are at most 255 bytes.
func (m *Message) Add(key, value string) { m.fields = append(m.fields, field{key, value}) }

// AddInt appends a number.
func (m *Message) AddInt(key string, n int64) { m.Add(key, strconv.FormatInt(n, 10)) }

// AddAll appends each value under the same key.
func (m *Message) AddAll(key string, values []string) {
	for _, v := range values {
		m.Add(key, v)
	}
}

// Get returns the first value of key, empty where there is none.
func (m Message) Get(key string) string {
	for _, f := range m.fields {
		if f.key == key {
			return f.value
		}
	}
	return ""
}

// Int returns the first value of key as a number; zero where there is none or it is not one.
func (m Message) Int(key string) int64 {
	n, err := strconv.ParseInt(m.Get(key), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// All returns every value of key, in order.
func (m Message) All(key string) []string {
	var all []string
	for _, f := range m.fields {
		if f.key == key {
			all = append(all, f.value)
		}
	}
	return all
}

// Marshal encodes m: Version, then for each field the key's length (1 byte), the key, the value's
// length (4 bytes, little endian) and the value.
func (m Message) Marshal() []byte {
	size := 1
	for _, f := range m.fields {
		size += 5 + len(f.key) + len(f.value)
	}
	b := make([]byte, 1, size)
	b[0] = Version
	for _, f := range m.fields {
		b = append(b, byte(len(f.key)))
		b = append(b, f.key...)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f.value)))
		b = append(b, f.value...)
	}
	return b
}

// Parse decodes what Marshal made. The errors are ErrVersion and one for anything malformed.
func Parse(b []byte) (Message, error) {
	if len(b) == 0 {
		return Message{}, errMalformed
	}
	if b[0] != Version {
		return Message{}, ErrVersion
	}
	var m Message
	for b = b[1:]; len(b) > 0; {
		k := int(b[0])
		if len(b) < 1+k+4 {
			return Message{}, errMalformed
		}
		key := string(b[1 : 1+k])
		b = b[1+k:]
		v := binary.LittleEndian.Uint32(b)
		b = b[4:]
		if uint64(v) > uint64(len(b)) {
			return Message{}, errMalformed
		}
		m.Add(key, string(b[:v]))
		b = b[v:]
	}
	return m, nil
}
