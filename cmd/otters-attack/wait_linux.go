package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// secretVariable holds the secret of a victim.
const secretVariable = "OTTERS_VICTIM_SECRET"

// waitLong waits, deaf to what asks it to end.
func waitLong([]string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	time.Sleep(survivorTime)
	return nil
}

// victim is a process of the host with a secret in its environment and in its memory, whose address
// it prints. It ends with its standard input.
func victim([]string) error {
	secret := os.Getenv(secretVariable)
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	copy(b, secret)
	if _, err := fmt.Printf("%p\n", &b[0]); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// idle is the runtime of an agent that is attacked: its secret is in its workspace and its log. It
// ends when it is asked to.
func idle([]string) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	secret := os.Getenv(secretVariable)
	if err := os.WriteFile("secret", []byte(secret), 0o600); err != nil {
		return err
	}
	if _, err := fmt.Println(secret); err != nil {
		return err
	}
	<-term
	return nil
}
