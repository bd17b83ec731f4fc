use super::*;

use serde_json::{Map, json};
use tempfile::TempDir;

/// A safetensors file of one-dimensional f32 tensors.
fn safetensors(tensors: &[(&str, u64)]) -> Vec<u8> {
    let (mut entries, mut end) = (Map::new(), 0);
    for (name, values) in tensors {
        let start = end;
        end += 4 * values;
        let entry = json!({ "dtype": "F32", "shape": [values], "data_offsets": [start, end] });
        entries.insert((*name).to_owned(), entry);
    }
    let json = serde_json::Value::Object(entries).to_string();
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.resize(bytes.len() + usize::try_from(end).expect("small"), 0);
    bytes
}

fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).expect("written");
    }
    dir
}

fn index(map: &[(&str, &str)]) -> Vec<u8> {
    let map: Map<_, _> = map.iter().map(|(t, file)| ((*t).to_owned(), json!(file))).collect();
    json!({ "weight_map": map }).to_string().into_bytes()
}

const CONFIG: (&str, &[u8]) = ("config.json", b"{}");
const FILE: &str = "model.safetensors";

#[test]
fn a_checkpoint_in_two_files_opens() {
    let (one, two) = (safetensors(&[("b", 2), ("a", 3)]), safetensors(&[("c", 1)]));
    let map = index(&[
        ("a", "model-1.safetensors"),
        ("b", "model-1.safetensors"),
        ("c", "model-2.safetensors"),
    ]);
    let dir = directory(&[
        CONFIG,
        ("model-2.safetensors", &two),
        ("model-1.safetensors", &one),
        ("adapters.safetensors", b"not looked at"),
        (INDEX, &map),
    ]);
    let opened = Checkpoint::open(dir.path()).expect("valid");
    let tensors: Vec<_> = opened.tensors.iter().map(|t| (t.name.as_str(), t.bytes)).collect();
    assert_eq!(tensors, [("b", 8), ("a", 12), ("c", 4)]);
    assert_eq!(opened.files.len(), 2);
    assert!(opened.files[0].ends_with("model-1.safetensors"));
    assert_eq!(opened.config_json, "{}");
    assert_eq!(opened.name, dir.path().file_name().expect("a name").to_string_lossy());

    fs::remove_file(dir.path().join(INDEX)).expect("removed");
    let without_index = Checkpoint::open(dir.path()).expect("valid");
    assert_eq!(without_index.tensors, opened.tensors);
    assert_eq!(without_index.digest(), opened.digest());
}

#[test]
fn the_digest_is_of_config_and_headers() {
    let open = |config: &[u8], name: &str, tensors: &[(&str, u64)], last: u8| {
        let mut file = safetensors(tensors);
        *file.last_mut().expect("not empty") = last;
        let dir = directory(&[("config.json", config), (name, &file)]);
        Checkpoint::open(dir.path()).expect("valid").digest()
    };
    let base = open(b"{}", "model.safetensors", &[("a", 1)], 0);
    assert_eq!(base, open(b"{}", "model.safetensors", &[("a", 1)], 9), "weights are not read");
    assert_ne!(base, open(b"{ }", "model.safetensors", &[("a", 1)], 0));
    assert_ne!(base, open(b"{}", "model.safetensors", &[("b", 1)], 0));
    assert_ne!(base, open(b"{}", "model.safetensors", &[("a", 2)], 0));
    assert_ne!(base, open(b"{}", "model2.safetensors", &[("a", 1)], 0));
}

type Files = Vec<(&'static str, Vec<u8>)>;

#[test]
fn faults_name_the_file_and_a_way_out() {
    let good = safetensors(&[("a", 2)]);
    let longer = [good.clone(), vec![0]].concat();
    let cut = &good[..good.len() - 1];
    let pointer: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
    let map = |pairs: &[(&str, &str)]| index(pairs);
    let config = || ("config.json", b"{}".to_vec());
    let cases: Vec<(Files, &[&str])> = vec![
        (vec![(FILE, good.clone())], &["has no config.json"]),
        (vec![config()], &["has no *.safetensors"]),
        (
            vec![("config.json", vec![0xFF]), (FILE, good.clone())],
            &["config.json", "cannot be read"],
        ),
        (vec![config(), (FILE, cut.to_vec())], &[FILE, "`a` ends at byte", "download"]),
        (vec![config(), (FILE, longer)], &[FILE, "damaged", "download"]),
        (vec![config(), (FILE, vec![1, 2])], &[FILE, "download"]),
        (vec![config(), (FILE, vec![0xFF; 64])], &[FILE, "claims"]),
        (vec![config(), (FILE, pointer.to_vec())], &[FILE, "git lfs pull"]),
        (
            vec![config(), (FILE, good.clone()), ("model-2.safetensors", good.clone())],
            &["tensor `a` is in", "model-2.safetensors"],
        ),
        (
            vec![config(), (INDEX, map(&[("a", "gone.safetensors")]))],
            &["gone.safetensors is missing", "download"],
        ),
        (
            vec![config(), (FILE, good.clone()), (INDEX, map(&[("b", FILE)]))],
            &["tensor `b` is not in", FILE],
        ),
        (
            vec![config(), (FILE, good.clone()), (INDEX, map(&[("a", "../x")]))],
            &[INDEX, "`../x` is not a file name"],
        ),
        (vec![config(), (INDEX, map(&[]))], &[INDEX, "weight_map"]),
        (vec![config(), (INDEX, b"{".to_vec())], &[INDEX]),
    ];
    for (files, said) in cases {
        let files: Vec<(&str, &[u8])> = files.iter().map(|(n, b)| (*n, b.as_slice())).collect();
        let dir = directory(&files);
        let error = Checkpoint::open(dir.path()).expect_err(said[0]).to_string();
        assert!(said.iter().all(|part| error.contains(part)), "{said:?}: {error}");
    }
    let error =
        Checkpoint::open(Path::new("/nowhere/at/all")).expect_err("no directory").to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let bytes = safetensors(&[("a", 4), ("b", 1)]);
    let dir = directory(&[CONFIG]);
    for length in 0..bytes.len() {
        fs::write(dir.path().join("model.safetensors"), &bytes[..length]).expect("written");
        assert!(Checkpoint::open(dir.path()).is_err(), "{length}");
    }
}

#[test]
fn names_come_from_the_path() {
    for (path, expected) in [
        ("/m/smollm2", "smollm2"),
        ("/c/models--ORG--NAME/snapshots/0a1b", "ORG/NAME"),
        ("/c/models--ORG--NAME-4--x/snapshots/0a1b", "ORG/NAME-4--x"),
        ("/c/other/snapshots/0a1b", "0a1b"),
        ("/", ""),
    ] {
        assert_eq!(name(Path::new(path)), expected, "{path}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_at_once() {
    for name in ["config.json", FILE, INDEX] {
        let weights = safetensors(&[("a", 1)]);
        let dir = directory(&[CONFIG, (FILE, &weights)]);
        let path = dir.path().join(name);
        // What stood there must not be what is read.
        let _ = fs::remove_file(&path);
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        let error = Checkpoint::open(dir.path()).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains("no ordinary file"), "{error}");
    }
}
