#include "textflag.h"

// func i386(number uint32) int32
// It makes a call by the gate of 32-bit programs, without arguments.
TEXT ·i386(SB), NOSPLIT, $0-12
	MOVL number+0(FP), AX
	INT  $0x80
	MOVL AX, ret+8(FP)
	RET
