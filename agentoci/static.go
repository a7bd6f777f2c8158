package agentoci

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// machines are the platforms' architectures as an ELF file names them.
var machines = map[string]elf.Machine{
	"386": elf.EM_386, "amd64": elf.EM_X86_64, "arm": elf.EM_ARM, "arm64": elf.EM_AARCH64, "loong64": elf.EM_LOONGARCH,
	"mips": elf.EM_MIPS, "mipsle": elf.EM_MIPS, "mips64": elf.EM_MIPS, "mips64le": elf.EM_MIPS,
	"ppc64": elf.EM_PPC64, "ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
}

// CheckStatic checks that a program for Linux runs where nothing else is: it is an ELF file of the
// platform's architecture that names no loader. Programs for other systems are not looked at.
func CheckStatic(program io.ReaderAt, p ocispec.Platform) (err error) {
	if p.OS != "linux" {
		return nil
	}
	f, err := elf.NewFile(program)
	if err != nil {
		return fmt.Errorf("it is no ELF program: %w; give a binary that was built for %s, not a script", err, platformString(p))
	}
	if want, ok := machines[p.Architecture]; ok && f.Machine != want {
		return fmt.Errorf("it is built for %s; give the one for %s", f.Machine, platformString(p))
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("it is no program but %s; link it", f.Type)
	}
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_INTERP {
			return errors.New("it is linked dynamically, and an agent has no libraries; build it static, a Go program with CGO_ENABLED=0")
		}
	}
	return nil
}
