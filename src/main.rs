use std::process::ExitCode;

fn main() -> ExitCode {
    daisy::cli::main()
}
