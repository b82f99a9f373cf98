package tools

import (
	"github.com/google/jsonschema-go/jsonschema"

	"smol-mcp/fleet"
)

// table lists the tools. A tool is one line here and one file.
func table() []tool {
	return []tool{
		listMachines(),
		getMachine(),
		createMachine(),
		runCommand(),
		runOnce(),
		readFile(),
		writeFile(),
		startMachine(),
		branchMachine(),
		stopMachine(),
		deleteMachine(),
		machineLogs(),
		pullImage(),
	}
}

// Pieces of schemas that several tools share.

func nameArgument() field {
	return required("name", phrase("Name of the machine, as list-machines shows it.", 128))
}

func pathArgument(description string) field {
	s := phrase(description+" An absolute path in the guest, without . or .. parts.", 4096)
	s.Pattern = "^/"
	return required("path", s)
}

func encodingArgument(description string, words ...string) field {
	return optional("encoding", standard(oneOf(description, words...), "utf8"))
}

// resourceArguments say how large a machine is.
func resourceArguments() []field {
	return []field{
		optional("cpus", between("Virtual CPUs, 1 to 64. Default: the server's setting (2).", 1, 64)),
		optional("memoryMb", between("Memory in MiB, 128 to 1048576. Default: the server's setting (2048).", 128, 1<<20)),
	}
}

// egressArguments say what a machine may reach.
func egressArguments() []field {
	return []field{
		optional("network", oneOf("Egress: open reaches the internet, blocked nothing. Default: the server's setting (blocked). A list below takes its place.", "open", "blocked")),
		optional("allowHosts", list("Host names that may be reached, each with its subdomains; all else is blocked.", phrase("Host name.", 253), 0, 256)),
		optional("allowCidrs", list("Addresses or CIDR ranges that may be reached; all else is blocked.", phrase("Address or CIDR range.", 64), 0, 256)),
	}
}

// machineSchema is the Machine of the results.
func machineSchema() *jsonschema.Schema {
	s := object(machineFields()...)
	s.Description = "The machine as its fleet shows it."
	return s
}

func machineFields() []field {
	states := []string{string(fleet.Created), string(fleet.Starting), string(fleet.Running), string(fleet.Suspended),
		string(fleet.Stopped), string(fleet.Failed), string(fleet.Unreachable), string(fleet.Unknown)}
	return []field{
		required("id", text("Id in the fleet.")),
		required("name", text("Name: what every tool takes.")),
		required("target", text("The fleet: local or cloud.")),
		required("state", oneOf("unreachable: it runs, but its agent is silent. unknown: see stateWord.", states...)),
		optional("stateWord", text("The fleet's own word where state is unknown.")),
		required("cpus", integer("Virtual CPUs.")),
		required("memoryMb", integer("Memory in MiB.")),
		required("network", text("Egress as the fleet says: open, blocked or allow(...).")),
		required("createdAt", integer("Epoch seconds.")),
		required("image", orNull("Image reference, or null where nobody knows it.")),
		required("pid", orNull("Process id of the hypervisor, or null.")),
		required("url", orNull("Public address, or null.")),
		required("ephemeral", flag("Deleted when the session that owns it ends.")),
		required("owner", oneOf("Whose it is. none: nobody's record, so never deleted by this server on its own.", "this-session", "another-session", "crashed-session", "none")),
		required("expiresAt", orNull("Epoch seconds when it will be deleted, or null.")),
		required("engine", text("What runs it, as smolvm or qemu; empty when unknown.")),
		required("isolation", text("Kind of isolation, as hardware VM; empty when the engine does not say.")),
	}
}
