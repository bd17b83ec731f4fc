//! Holds the layering of `src/lib.rs` by reading which modules each file names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const PURE: &[&str] = &[
    "doctor",
    "facts",
    "guard",
    "links",
    "model",
    "pipeline",
    "plan",
    "preflight",
    "schedule",
    "units",
];
const ADAPTERS: &[&str] = &[
    "discovery",
    "engine",
    "identity",
    "ipc",
    "logs",
    "machine",
    "net",
    "pake",
    "ssh",
    "store",
    "text",
];
const SHELLS: &[&str] = &["api", "cli", "node", "rank"];

/// What only one module may name.
const RESERVED: &[(&str, &[&str])] = &[
    ("mlx_rs", &["engine"]),
    ("mlx_sys", &["engine"]),
    ("quinn", &["net"]),
    ("mdns_sd", &["discovery"]),
    ("spake2", &["pake"]),
    ("russh", &["ssh"]),
    ("rpassword", &["cli"]),
    ("tar", &["cli"]),
    ("rustls", &["net"]),
    ("axum", &["api"]),
    ("tokenizers", &["text", "store"]),
    ("minijinja", &["text"]),
    ("clap", &["cli"]),
    ("anyhow", &["cli"]),
    ("println!", &["cli"]),
    ("eprintln!", &["cli"]),
];

/// What a pure module may not name: async, IO, clocks, randomness.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::io",
    "std::process",
    "std::env",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "tokio",
    "aws_lc_rs",
];

fn sources() -> BTreeMap<String, Vec<(PathBuf, String)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found: BTreeMap<String, Vec<(PathBuf, String)>> = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let inside = path.strip_prefix(&root).expect("inside src");
                let first = inside.components().next().expect("a name").as_os_str();
                let module = first.to_string_lossy().trim_end_matches(".rs").to_owned();
                let text = fs::read_to_string(&path).expect("utf-8 source");
                found.entry(module).or_default().push((path, code(&text)));
            }
        }
    }
    found
}

/// The code without comments and without its tests, which may use what they like.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Modules of this crate that `text` names by `crate::…`, also in `use crate::{a, b::c}`.
fn named(text: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for part in text.split("crate::").skip(1) {
        if let Some(list) = part.strip_prefix('{') {
            let mut depth = 0;
            let mut item = String::new();
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        modules.insert(first_name(&item));
                        item.clear();
                    }
                    c if depth == 0 => item.push(c),
                    _ => {}
                }
            }
            modules.insert(first_name(&item));
        } else {
            modules.insert(first_name(part));
        }
    }
    modules.remove("");
    modules
}

fn first_name(path: &str) -> String {
    path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn is_test_file(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    name.ends_with("tests") || path.components().any(|part| part.as_os_str() == "tests")
}

#[test]
fn every_module_has_a_layer() {
    let known: BTreeSet<&str> = [PURE, ADAPTERS, SHELLS].concat().into_iter().collect();
    for module in sources().keys().filter(|name| !["lib", "main"].contains(&name.as_str())) {
        assert!(known.contains(module.as_str()), "src/{module} is in no layer of this test");
    }
}

#[test]
fn modules_import_only_what_their_layer_may() {
    let mut faults = Vec::new();
    for (module, files) in sources() {
        let allowed: BTreeSet<&str> = if PURE.contains(&module.as_str()) {
            PURE.iter().copied().collect()
        } else if ADAPTERS.contains(&module.as_str()) {
            PURE.iter().copied().chain([module.as_str()]).collect()
        } else {
            continue;
        };
        for (path, text) in files.iter().filter(|(path, _)| !is_test_file(path)) {
            for other in named(text).iter().filter(|other| !allowed.contains(other.as_str())) {
                let is_module = [PURE, ADAPTERS, SHELLS].concat().contains(&other.as_str());
                if is_module {
                    faults.push(format!("{} names crate::{other}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_http_side_sees_the_node_through_its_handle() {
    // A test may hold both ends: what a client sends and the prompt that it becomes.
    for (path, text) in sources()["api"].iter().filter(|(path, _)| !is_test_file(path)) {
        for part in text.split("crate::node::").skip(1) {
            let name = first_name(part);
            assert_eq!(name, "handle", "{} names crate::node::{name}", path.display());
        }
        for other in named(text) {
            assert!(
                ["api", "node", "units"].contains(&other.as_str()),
                "{} names crate::{other}",
                path.display()
            );
        }
    }
}

#[test]
fn pure_modules_have_no_clock_no_io_and_no_randomness() {
    let sources = sources();
    for module in PURE {
        for (path, text) in sources[*module].iter().filter(|(path, _)| !is_test_file(path)) {
            for name in IMPURE {
                assert!(!text.contains(name), "{} names {name}", path.display());
            }
        }
    }
}

#[test]
fn libraries_and_printing_have_one_home() {
    let mut faults = Vec::new();
    for (module, files) in sources() {
        for (path, text) in files.iter().filter(|(path, _)| !is_test_file(path)) {
            for (name, homes) in RESERVED {
                let call = name.ends_with('!');
                let named =
                    if call { text.contains(name) } else { text.contains(&format!("{name}::")) };
                if named && !homes.contains(&module.as_str()) {
                    faults.push(format!("{} names {name}", path.display()));
                }
                if call && named && !path.ends_with("cli/render.rs") {
                    faults.push(format!("{} prints; only cli/render.rs does", path.display()));
                }
            }
            if text.contains("unsafe ") && !path.ends_with("engine/ffi.rs") {
                faults.push(format!("{} has unsafe code; only engine/ffi.rs may", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_reader_of_use_lines_can_fail() {
    let text = "use crate::{net, model::{Config, Spec}};\nuse crate::engine::Engine; crate::x()";
    let expected = ["engine", "model", "net", "x"].map(str::to_owned);
    assert_eq!(named(text), BTreeSet::from(expected));
    assert_eq!(code("a\n// b\n#[cfg(test)]\nmod c;"), "a");
}
