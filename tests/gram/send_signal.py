"""Sends a GRAM job a signal, as no command of GRAM does: CONTACT NUMBER ARGUMENT; prints error, state and failure."""

import ctypes
import sys


def main() -> int:
    common = ctypes.CDLL("libglobus_common.so.0", ctypes.RTLD_GLOBAL)
    client = ctypes.CDLL("libglobus_gram_client.so.3")
    common.globus_module_activate(ctypes.byref(ctypes.c_char.in_dll(client, "globus_gram_client_module")))
    state, failure = ctypes.c_int(), ctypes.c_int()
    contact, number, argument = sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3].encode()
    error = client.globus_gram_client_job_signal(contact, number, argument, ctypes.byref(state), ctypes.byref(failure))
    print(error, state.value, failure.value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
