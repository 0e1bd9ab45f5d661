#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use wasmtime::Linker;

use super::*;
use crate::{abi::Abi, host, policy::PolicySpec};

/// What a guest sees of its memory: the answer to each growth, and the size after it.
type Seen = Vec<(i32, i32)>;

fn module(fields: &str) -> Vec<u8> {
    let functions = r#"(func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
        (func (export "size") (result i32) (memory.size))"#;
    wat::parse_str(format!("(module {fields} {functions})")).unwrap()
}

/// Grows by each of `steps`. Whether the host has refused any is the last word.
fn run(wasm: &[u8], memory_bytes: u64, steps: &[u32]) -> wasmtime::Result<(Seen, bool)> {
    let engine = wasmtime::Engine::default();
    let module = wasmtime::Module::new(&engine, wasm)?;
    let limits = Limits {
        memory_bytes,
        ..Limits::default()
    };
    let headroom = Headroom::of(&module, &limits);
    let access = host::Access::new(&PolicySpec::new(Abi::Wapc));
    let mut guest = Guest::new(
        &limits,
        Arc::new(access),
        crate::MemoryBudget::unlimited().reservation(),
    );
    guest.meter.unseen_bytes = headroom.bytes();
    let mut store = Store::new(&engine, guest);
    store.limiter(|guest| &mut guest.meter);
    let mut linker = Linker::new(&engine);
    linker.func_wrap("env", "f", |x: i32| x)?;
    let instance = linker.instantiate(&mut store, &module)?;
    headroom.limit(&mut store, &instance);
    let grow = instance.get_typed_func::<u32, i32>(&mut store, "grow")?;
    let size = instance.get_typed_func::<(), i32>(&mut store, "size")?;
    let mut seen = Seen::new();
    for step in steps {
        let answer = grow.call(&mut store, *step)?;
        seen.push((answer, size.call(&mut store, ())?));
    }
    Ok((seen, store.data().meter.memory_refused))
}

#[track_caller]
fn check_same(fields: &str, pages: u64, steps: &[u32]) {
    let plain = module(fields);
    let roomy = give(&plain).unwrap();
    let (plain, roomy) = (
        run(&plain, pages * PAGE_BYTES, steps),
        run(&roomy, pages * PAGE_BYTES, steps),
    );
    match (plain, roomy) {
        (Ok(plain), Ok(roomy)) => assert_eq!(roomy, plain, "{fields} {pages} {steps:?}"),
        (Err(_), Err(_)) => {}
        (plain, roomy) => panic!("{fields} {pages} {steps:?}: {plain:?} is now {roomy:?}"),
    }
}

#[test]
fn guests_see_what_they_saw_before() {
    const SHAPES: [&str; 5] = [
        "(memory 2)",
        "(memory 0)",
        "(memory 2 34)",
        "(memory 3 60)",
        r#"(import "env" "f" (func (param i32) (result i32))) (memory 1)
           (global (mut i32) (i32.const 7)) (global i32 (i32.const 8))
           (table funcref (elem 0)) (data (i32.const 65530) "at end")"#,
    ];
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..400 {
        let shape = SHAPES[random.random_range(0..SHAPES.len())];
        let pages = random.random_range(0..80);
        let steps: Vec<u32> = (0..random.random_range(1..12))
            .map(|_| match random.random_range(0..8) {
                0 => 0,
                1 => random.random_range(0..100),
                2 => u32::MAX - random.random_range(0..70),
                3 => random.random_range(60_000..70_000),
                _ => random.random_range(0..12),
            })
            .collect();
        check_same(shape, pages, &steps);
    }
}

/// A guest with room in a store without limits.
fn start(fields: &str) -> (Store<()>, Instance) {
    let engine = wasmtime::Engine::default();
    let wasm = give(&module(fields)).unwrap();
    let module = wasmtime::Module::new(&engine, &wasm).unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Linker::new(&engine).instantiate(&mut store, &module);
    (store, instance.unwrap())
}

#[test]
fn growth_within_the_room_leaves_the_memory_alone() {
    let (mut store, instance) = start(r#"(memory (export "memory") 2)"#);
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    let grow = instance.get_typed_func::<u32, i32>(&mut store, "grow");
    let grow = grow.unwrap();
    let pages = 2 + u64::from(PAGES);
    assert_eq!(memory.size(&store), pages);
    assert_eq!(grow.call(&mut store, PAGES).unwrap(), 2);
    assert_eq!(memory.size(&store), pages);
    assert_eq!(grow.call(&mut store, 1).unwrap(), 34);
    assert_eq!(memory.size(&store), pages + 1);
}

#[test]
fn an_access_beyond_the_memory_ends_in_the_room_or_traps() {
    let peek = r#"(func (export "peek") (param i32) (result i32) (i32.load (local.get 0)))"#;
    let (mut store, instance) = start(&format!("(memory 2) {peek}"));
    let peek = instance.get_typed_func::<u32, i32>(&mut store, "peek");
    let peek = peek.unwrap();
    let page = u32::try_from(PAGE_BYTES).unwrap();
    assert_eq!(peek.call(&mut store, 2 * page).unwrap(), 0);
    let error = peek.call(&mut store, (2 + PAGES) * page).unwrap_err();
    let trap = error.downcast_ref::<wasmtime::Trap>();
    assert_eq!(trap, Some(&wasmtime::Trap::MemoryOutOfBounds));
}

#[test]
fn modules_that_can_not_use_room_stay_as_they_are() {
    let untouched = |text: &str| assert!(give(&wat::parse_str(text).unwrap()).is_none(), "{text}");
    let grow = r#"(func (export "grow") (drop (memory.grow (i32.const 1))))"#;
    untouched(r#"(module (memory 2) (func (export "f")))"#);
    untouched(&format!("(module (memory 2 33) {grow})"));
    untouched(&format!("(module (memory 65536) {grow})"));
    untouched(&format!(
        r#"(module (import "env" "memory" (memory 2)) {grow})"#
    ));
    untouched(&format!("(module (memory 2) (func $s) (start $s) {grow})"));
    untouched("(module (memory 2) (func (drop (memory.grow (i32.const 1)))))");
}
