//! The house rules and the command line, tested on the sources and on the real binary.

mod command_line;
mod damage;
mod introduce;
mod layering;
mod plan;
