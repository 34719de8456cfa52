import assert from "node:assert/strict";
import { test } from "node:test";
import { Backoff, isLasting, isPassing, isRepeatable, keyed } from "../../sessiond/web/retry.js";

test("delays are doubled up to two seconds, shortened by at most a half, and begin anew", () => {
  const backoff = new Backoff();
  for (let attempt = 0; attempt < 40; attempt += 1) {
    const longest = Math.min(50 * 2 ** attempt, 2000);
    const delay = backoff.next();
    assert.ok(delay >= longest / 2 && delay <= longest, `attempt ${attempt}: ${delay}`);
  }
  backoff.reset();
  assert.ok(backoff.next() <= 50);
});

test("messages are repeated with one key, and what has no key is not repeated", () => {
  const sent = keyed("chat.send", { sessionKey: "main" });
  assert.match(String(sent.idempotencyKey), /^page-[0-9a-f-]{36}$/);
  assert.notEqual(keyed("chat.send", {}).idempotencyKey, keyed("chat.send", {}).idempotencyKey);
  assert.deepEqual(keyed("chat.send", { idempotencyKey: "mine" }), { idempotencyKey: "mine" });
  assert.deepEqual(keyed("sessions.kill", { key: "main" }), { key: "main" });
  for (const method of ["chat.send", "sessions_spawn", "sessions_list", "chat.history", "initialize"])
    assert.ok(isRepeatable(method));
  for (const method of ["sessions.kill", "sessions.reset", "chat.inject", "tokens.mint"])
    assert.ok(!isRepeatable(method));
});

test("no error is both passing and lasting", () => {
  for (const type of ["away", "stopping", "overloaded", "storage"]) assert.ok(isPassing(type) && !isLasting(type));
  for (const type of ["unauthenticated", "forbidden", "not_found", "invalid_params"])
    assert.ok(isLasting(type) && !isPassing(type));
  assert.ok(!isPassing("internal") && !isLasting("internal"));
});
