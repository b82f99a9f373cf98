package tools

import (
	"context"

	"smol-mcp/fleet"
)

type pullIn struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

type pullOut struct {
	Reference    string `json:"reference"`
	Digest       string `json:"digest"`
	Size         int64  `json:"size"`
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	LayerCount   int    `json:"layerCount"`
}

func pullImage() tool {
	return define(tool{
		name:  "pull-image",
		title: "Pull image",
		description: "Pulls an image from its registry into a machine's own image store, and returns its digest and size. create-machine and run-once pull by themselves: use this only to warm up an image for containers inside a machine, " +
			"or to resolve a tag to a digest. Starts a stopped machine, may need egress, and may take minutes. Harmless to repeat.",
		hints:     hints{idempotent: true, openWorld: true},
		localOnly: true,
		in: arguments(nameArgument(),
			required("image", text("Registry reference with a tag or digest, as alpine:3.20."))),
		out: object(
			required("reference", text("")), required("digest", text("")), required("size", integer("Bytes.")),
			required("architecture", text("")), required("os", text("")), required("layerCount", integer("")),
		),
	}, (*call).pull)
}

func (c *call) pull(ctx context.Context, in pullIn) (pullOut, error) {
	if !isRegistryImage(in.Image) {
		return pullOut{}, invalid("image "+fleet.Quote(in.Image), "only a registry reference can be pulled")
	}
	c.stage("pulling %s into %s", in.Image, in.Name)
	img, err := c.fleet.Pull(ctx, in.Name, in.Image)
	if err != nil {
		return pullOut{}, c.nearby(ctx, in.Name, err)
	}
	return pullOut{Reference: img.Reference, Digest: img.Digest, Size: img.Size, Architecture: img.Architecture, OS: img.OS, LayerCount: img.LayerCount}, nil
}
