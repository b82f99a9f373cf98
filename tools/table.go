package tools

import (
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"

	"smol-mcp/fleet"
)

// table lists the tools. A tool is one line here and one file. Defaults in
// their words are those of the settings.
func table(l Limits) []tool {
	return []tool{
		listMachines(),
		getMachine(),
		createMachine(l),
		runCommand(l),
		readCommand(),
		stopCommand(),
		runOnce(l),
		readFile(),
		writeFile(),
		startMachine(),
		branchMachine(l),
		stopMachine(),
		deleteMachine(),
		machineLogs(l),
		pullImage(),
	}
}

// Pieces of schemas that several tools share.

func nameArgument() field {
	return required("name", text("Machine name."))
}

func pathArgument(description string) field {
	s := text(description + " Absolute guest path without . or ..")
	s.Pattern = "^/"
	return required("path", s)
}

func encodingArgument(description string, words ...string) field {
	return optional("encoding", standard(oneOf(description, words...), "utf8"))
}

// resourceArguments say how large a machine is.
func resourceArguments(l Limits) []field {
	return []field{
		optional("cpus", between(fmt.Sprintf("Virtual CPUs. Default: %d.", l.CPUs), 1, 64)),
		optional("memoryMb", between(fmt.Sprintf("Memory in MiB. Default: %d.", l.MemoryMB), 64, 1<<20)),
	}
}

// egressArguments say what a machine may reach. brief leaves to create-machine what
// it says of them.
func egressArguments(open, brief bool) []field {
	say := func(what string) string {
		if brief {
			return "As for create-machine."
		}
		return what
	}
	return []field{
		optional("network", oneOf(say("open reaches the internet, blocked nothing. The lists take its place.")+" Default: "+policyWord(open)+".", "open", "blocked")),
		optional("allowHosts", atMost(256, say("Reach only these hosts and their subdomains."), text(""))),
		optional("allowCidrs", atMost(256, say("Reach only these addresses or ranges."), text(""))),
	}
}

// machineSchema is a machine inside a result; get-machine defines its fields.
func machineSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Description: "As get-machine shows it."}
}

func machineFields() []field {
	states := []string{string(fleet.Created), string(fleet.Starting), string(fleet.Running), string(fleet.Suspended),
		string(fleet.Stopped), string(fleet.Failed), string(fleet.Unreachable), string(fleet.Unknown)}
	return []field{
		required("id", text("")),
		required("name", text("")),
		required("target", text("")),
		required("state", oneOf("", states...)),
		optional("stateWord", text("")),
		required("cpus", integer("")),
		required("memoryMb", integer("")),
		required("network", text("open, blocked or allow(...).")),
		required("createdAt", integer("Epoch seconds.")),
		required("image", orNull("Or null.")),
		required("pid", orNull("Hypervisor's, or null.")),
		required("url", orNull("Or null.")),
		required("ephemeral", flag("Deleted when its session ends.")),
		required("owner", text("this-session, another-session, crashed-session (name it to take it over, or it goes at expiresAt), none (kept) or "+ownerUnknown+".")),
		required("expiresAt", orNull("Epoch seconds of its deletion, or null.")),
		required("engine", text("")),
		required("isolation", text("")),
	}
}

func policyWord(open bool) string {
	if open {
		return "open"
	}
	return "blocked"
}
