use super::*;

use aws_lc_rs::digest::{SHA256, digest};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn remote(path: &str, bytes: &[u8]) -> RemoteFile {
    let hash = digest(&SHA256, bytes);
    let content = Content::Sha256(hash.as_ref().try_into().expect("32 bytes"));
    RemoteFile { path: path.to_owned(), bytes: bytes.len() as u64, content }
}

fn revision(files: &[RemoteFile]) -> Revision {
    Revision {
        repo: RepoId::parse("org/name").expect("a name"),
        asked: "main".to_owned(),
        commit: COMMIT.to_owned(),
        files: files.to_vec(),
        renamed: None,
    }
}

fn incoming(cache: &Cache, revision: &Revision, file: &RemoteFile) -> Incoming {
    match cache.begin(revision, file, &mut |_| {}).expect("begun") {
        Begun::Incoming(incoming) => *incoming,
        Begun::There(path) => panic!("{} is there", path.display()),
    }
}

#[test]
fn a_file_comes_in_pieces_over_two_tries() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().join("hub"));
    let file = remote("sub/model.safetensors", b"hello, world");
    let revision = revision(std::slice::from_ref(&file));
    assert_eq!(cache.find(&revision.repo, "main").expect("read"), None);

    let mut first = incoming(&cache, &revision, &file);
    first.write(b"hello").expect("written");
    assert!(matches!(first.finish(), Err(CacheError::Short { got: 5, .. })));

    let mut second = incoming(&cache, &revision, &file);
    assert_eq!((second.have(), second.bytes()), (5, 12));
    second.write(b", world").expect("written");
    let path = second.finish().expect("complete");
    assert_eq!(fs::read(&path).expect("read"), b"hello, world");
    assert_eq!(
        fs::read_link(&path).expect("a link"),
        Path::new("../../../blobs").join(file.content.to_string())
    );
    assert!(matches!(cache.begin(&revision, &file, &mut |_| {}), Ok(Begun::There(_))));

    cache.refer(&revision).expect("noted");
    let found = cache.find(&revision.repo, "main").expect("read").expect("here");
    assert_eq!(found.files(), [file]);
    assert_eq!(found.refs, ["main"]);
    assert_eq!(cache.find(&revision.repo, COMMIT).expect("read"), Some(found.clone()));
    assert_eq!(cache.list().expect("read"), std::slice::from_ref(&found));
    assert_eq!(cache.remove(&found).expect("removed"), 12);
    assert_eq!(cache.list().expect("read"), []);
}

#[test]
fn wrong_bytes_never_get_a_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().to_owned());
    let file = remote("config.json", b"right");
    let revision = revision(std::slice::from_ref(&file));
    let mut wrong = incoming(&cache, &revision, &file);
    wrong.write(b"wrong").expect("written");
    let error = wrong.finish().expect_err("damaged").to_string();
    assert!(error.contains("config.json") && error.contains("try again"), "{error}");

    let mut long = incoming(&cache, &revision, &file);
    assert_eq!(long.have(), 0);
    long.write(b"right").expect("written");
    assert!(matches!(long.write(b"!"), Err(CacheError::Long { .. })));
    drop(long);
    assert_eq!(incoming(&cache, &revision, &file).have(), 0);
}

#[test]
fn a_blob_that_two_commits_share_outlives_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().to_owned());
    let file = remote("config.json", b"{}");
    let one = revision(std::slice::from_ref(&file));
    let mut first = incoming(&cache, &one, &file);
    first.write(b"{}").expect("written");
    first.finish().expect("complete");
    cache.refer(&one).expect("noted");
    let two = Revision { commit: "f".repeat(40), asked: "pr/1".to_owned(), ..one.clone() };
    assert!(matches!(cache.begin(&two, &file, &mut |_| {}), Ok(Begun::There(_))));
    cache.refer(&two).expect("noted");
    let other = cache.find(&two.repo, "pr/1").expect("read").expect("here");
    assert_eq!(cache.remove(&other).expect("removed"), 0);
    let left = cache.find(&one.repo, "main").expect("read").expect("here");
    assert_eq!(fs::read(left.dir.join("config.json")).expect("read"), b"{}");
}

#[test]
fn a_file_that_another_process_fetches_is_left_to_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().to_owned());
    let file = remote("config.json", b"{}");
    let revision = revision(std::slice::from_ref(&file));
    let mut held = incoming(&cache, &revision, &file);
    let other = {
        let (cache, revision, file) = (cache.clone(), revision.clone(), file.clone());
        std::thread::spawn(move || cache.begin(&revision, &file, &mut |_| {}))
    };
    held.write(b"{}").expect("written");
    held.finish().expect("complete");
    let begun = other.join().expect("no panic").expect("begun");
    assert!(matches!(begun, Begun::There(_)), "{begun:?}");
}

#[test]
fn room_is_asked_for_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().join("not/there/yet"));
    let mut file = remote("model.safetensors", b"x");
    let one = revision(std::slice::from_ref(&file));
    cache.room(&one, &[&file]).expect("a byte fits");
    file.bytes = u64::MAX / 2;
    let error = cache.room(&one, &[&file]).expect_err("too much").to_string();
    assert!(error.contains("GiB free") && error.contains("HF_HUB_CACHE"), "{error}");
}

#[test]
fn a_path_that_leads_out_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().to_owned());
    let file = remote("../../../config.json", b"{}");
    let revision = revision(std::slice::from_ref(&file));
    let begun = cache.begin(&revision, &file, &mut |_| {});
    assert!(matches!(begun, Err(CacheError::Path { .. })), "{begun:?}");
    assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
}
