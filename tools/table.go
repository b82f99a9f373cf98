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
	return required("name", text("Name of the machine."))
}

func pathArgument(description string) field {
	s := text(description + " Absolute guest path, without . or .. parts.")
	s.Pattern = "^/"
	return required("path", s)
}

func encodingArgument(description string, words ...string) field {
	return optional("encoding", standard(oneOf(description, words...), "utf8"))
}

// resourceArguments say how large a machine is.
func resourceArguments(l Limits) []field {
	return []field{
		optional("cpus", between(fmt.Sprintf("Virtual CPUs, 1 to 64. Default: %d.", l.CPUs), 1, 64)),
		optional("memoryMb", between(fmt.Sprintf("Memory in MiB, 64 to 1048576. Default: %d.", l.MemoryMB), 64, 1<<20)),
	}
}

// egressArguments say what a machine may reach.
func egressArguments(open bool) []field {
	return []field{
		optional("network", oneOf("Egress: open reaches the internet, blocked nothing. Default: "+policyWord(open)+". The lists take its place.", "open", "blocked")),
		optional("allowHosts", atMost(256, "Reach only these host names, with their subdomains.", text(""))),
		optional("allowCidrs", atMost(256, "Reach only these addresses or ranges.", text(""))),
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
		required("image", orNull("Reference, or null where unknown.")),
		required("pid", orNull("Of the hypervisor, or null.")),
		required("url", orNull("Public address, or null.")),
		required("ephemeral", flag("Deleted when its session ends.")),
		required("owner", oneOf("crashed-session: name it to take it over, else it is deleted at expiresAt. none: kept.", "this-session", "another-session", "crashed-session", "none", ownerUnknown)),
		required("expiresAt", orNull("Epoch seconds of its deletion, or null.")),
		required("engine", text("As smolvm or qemu.")),
		required("isolation", text("As hardware VM; empty when unknown.")),
	}
}

func policyWord(open bool) string {
	if open {
		return "open"
	}
	return "blocked"
}
