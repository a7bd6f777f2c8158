package main

import (
	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
)

const remoteHelp = `

Credentials are those of config.json in DOCKER_CONFIG, or in ~/.docker without one, with its
credential helpers; proxies and certificates those of HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE and
SSL_CERT_DIR: all of the environment that ottersd was started with. A registry on this machine is
spoken to without TLS.`

func (a *app) imagePushCommand(kind string) *cobra.Command {
	return &cobra.Command{
		Use:   "push IMAGE [HOST/NAME[:TAG]]",
		Short: "Copy an image to another registry",
		Long:  "Copy an image to another registry: to the one of its own name, or to the name that is given." + remoteHelp,
		Args:  between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				if kind == "bin" {
					if err := areBins(cmd.Context(), c, args[:1]); err != nil {
						return err
					}
				}
				return a.transfer(c.Push(cmd.Context(), args[0], append(args, "")[1]), false)
			})
		},
	}
}

func (a *app) imagePullCommand(kind string) *cobra.Command {
	return &cobra.Command{
		Use:   "pull HOST/NAME[:TAG][@DIGEST]",
		Short: "Copy an image from another registry",
		Long: `Copy an image from another registry into the daemon's. "otters run", FROM, RUNTIME and BIN do so by
themselves for an image that is not there yet; pull asks again what a tag now names.` + remoteHelp,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				err := a.transfer(c.Pull(cmd.Context(), args[0], false), false)
				if err == nil && kind == "bin" {
					err = areBins(cmd.Context(), c, args)
				}
				return err
			})
		},
	}
}
