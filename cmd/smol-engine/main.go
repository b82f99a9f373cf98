//go:build unix

// Smol-engine is the built-in engine: it answers the smolvm API on a Unix socket,
// with machines on QEMU. See package engine; this program reads the command line.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"smol-mcp/fleet/engine"
)

const usage = `smol-engine runs virtual machines with QEMU and answers the smolvm API.

  smol-engine serve --listen unix://PATH   answer until SIGTERM; machines go on
  smol-engine images                       list the prepared images
  smol-engine images prune [--all]         remove those that no machine uses, beyond the bound or all
  smol-engine setup [--yes] [--json]       say what is missing to run machines, and get it
  smol-engine doctor [--json]              look at all that machines need
  smol-engine --version

smol-mcp starts it by itself. Machines are in $XDG_DATA_HOME/smol-engine, images and
kernels in $XDG_CACHE_HOME/smol-engine.
`

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "smol-engine: "+err.Error())
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	word := ""
	if len(args) > 0 {
		word = args[0]
	}
	switch word {
	case "serve":
		return serve(args[1:], stdout, stderr)
	case "images":
		return images(args[1:], stdout, stderr)
	case "setup":
		return setUp(args[1:], stdout, stderr)
	case "doctor":
		return doctor(args[1:], stdout, stderr)
	case "--version", "version":
		_, err := fmt.Fprintln(stdout, "smol-engine "+engine.Version)
		return err
	case "help", "--help", "-h":
		_, err := io.WriteString(stdout, usage)
		return err
	}
	return fmt.Errorf("unknown command %q; smol-engine help lists them", word)
}

// flags are those that every command takes.
func flags(name string, stderr io.Writer, o *engine.Options) *flag.FlagSet {
	f := flag.NewFlagSet("smol-engine "+name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.Data, "data", "", "`directory` of machines")
	f.StringVar(&o.Cache, "cache", "", "`directory` of images, templates and kernels")
	f.Int64Var(&o.MaxImages, "max-image-bytes", engine.DefaultMaxImages, "`bytes` of images that are kept, besides those in use")
	return f
}

func serve(args []string, stdout, stderr io.Writer) error {
	var o engine.Options
	f := flags("serve", stderr, &o)
	f.StringVar(&o.Listen, "listen", "", "where to listen, as unix://`PATH`")
	f.StringVar(&o.QEMU, "qemu", "", "QEMU `program`")
	f.StringVar(&o.Kernel, "kernel", "", "kernel `file` for machines, with its modules beside it")
	f.StringVar(&o.Guest, "guest", "", "smol-guest `program`")
	f.StringVar(&o.Accel, "accel", "", "`kvm`, hvf or tcg; by default what boots a guest")
	f.BoolVar(&o.Cold, "cold", false, "boot every machine, and keep no templates to start from")
	verbose := f.Bool("v", false, "log every request")
	if err := f.Parse(args); err != nil {
		return err
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	o.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	o.Ready = func() { fmt.Fprintln(stdout, "smol-engine listening on "+o.Listen) }
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return engine.Serve(ctx, o)
}

func images(args []string, stdout, stderr io.Writer) error {
	var o engine.Options
	prune := len(args) > 0 && args[0] == "prune"
	if prune {
		args = args[1:]
	}
	f := flags("images", stderr, &o)
	all := f.Bool("all", false, "with prune: also what is within the bound")
	asJSON := f.Bool("json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *all {
		o.MaxImages = 0
	}
	if prune {
		return engine.PruneImages(o, *all, stdout)
	}
	return engine.ListImages(o, *asJSON, stdout)
}
