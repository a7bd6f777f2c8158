//go:build !linux

package system

import "syscall"

// dieWithParent does nothing: this system can't tie a child to its parent.
func dieWithParent(*syscall.SysProcAttr) {}
