//! The plan of whole nodes: what each can spare decides who holds what, or that nothing is loaded.

use serde_json::json;

use super::cluster::{Home, Ready, body, post, tiny};

/// Two nodes that may each use so much, and reserve nothing.
fn nodes(limits: [&'static str; 2]) -> Ready {
    let [near, far] = limits.map(|limit| (limit, "127.0.0.1:0".to_owned()));
    Ready::new(vec![
        (Home::new("near").with_memory_limit(near.0), near.1),
        (Home::new("far").with_memory_limit(far.0), far.1),
    ])
}

#[test]
fn a_model_goes_where_there_is_room_and_is_refused_where_there_is_none() {
    let model = tiny("llama-f32");
    let spare = &["--headroom-gb", "0", "--sequences", "1", "--chunk", "16", "--context", "64"];

    // It fits this node alone, and is not split.
    let ready = nodes(["1GiB", "1GiB"]);
    let mut serve = ready.serve(&model, spare);
    serve.line("on 1 rank(s)");
    serve.line("note: this model fits `near` alone; split over all 2 nodes it would be about");
    serve.line("hint: `--nodes all` splits it anyway");
    serve.line("OpenAI endpoint");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
    drop(ready);

    // It takes both.
    let ready = nodes(["240KiB", "240KiB"]);
    let mut serve = ready.serve(&model, spare);
    serve.line("on 2 rank(s)");
    let line = serve.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    let asked = post(url, &body("hello", &json!({"max_tokens": 4})));
    assert_eq!(asked.0, 200, "{}", asked.1);
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
    let mut dry = ready.serve(&model, &[spare, &["--dry-run"][..]].concat());
    assert_eq!(dry.exit_code(), Some(0));
    let said = dry.output();
    assert!(said.contains("on 2 rank(s), 1 sequence(s) of up to 64 tokens"), "{said}");
    assert!(said.contains("memory limit"), "{said}");
    drop(ready);

    // Both are too little: nothing is loaded, and the sums say why.
    let ready = nodes(["100KiB", "40KiB"]);
    let mut serve = ready.serve(&model, spare);
    assert_eq!(serve.exit_code(), Some(1));
    let said = serve.output();
    for part in [
        "error: llama-f32 does not fit the memory that the cluster can spare now",
        "memory limit 0.0 − 0.0 reserve  ← short by less than 0.1",
        "hint: `--memory-limit` of",
    ] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
    assert!(!said.contains("materialized"), "{said}");
}
