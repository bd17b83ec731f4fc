"""Runs a command on a terminal and types into it: typist.py [PROMPT ANSWER]... -- COMMAND...

Each answer is typed once its prompt has been shown, and, where the prompt is given as hidden:PROMPT, what is typed is not
shown any more. All that the terminal shows goes to standard output. Ends as the command does.
"""

import os
import pty
import select
import sys
import termios
import time

PATIENCE_S = 120


def type_into(terminal, answer, is_hidden, until):
    # A person does not type before the question either; here the two are microseconds apart.
    while is_hidden and termios.tcgetattr(terminal)[3] & termios.ECHO and time.monotonic() < until:
        os.sched_yield()
    os.write(terminal, answer.encode() + b"\n")


def main():
    split = sys.argv.index("--")
    answers, command = sys.argv[1:split], sys.argv[split + 1 :]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    until, seen = time.monotonic() + PATIENCE_S, b""
    while True:
        if not select.select([terminal], [], [], max(0, until - time.monotonic()))[0]:
            sys.exit("typist.py: it did not end")
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux says so when the other side is closed.
            piece = b""
        if not piece:
            break
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        seen += piece
        if answers and answers[0].removeprefix("hidden:").encode() in seen:
            type_into(terminal, answers[1], answers[0].startswith("hidden:"), until)
            answers, seen = answers[2:], b""
    _, status = os.waitpid(pid, 0)
    if answers:
        sys.exit(f"typist.py: nobody asked {answers[0]!r}")
    sys.exit(os.waitstatus_to_exitcode(status))


main()
