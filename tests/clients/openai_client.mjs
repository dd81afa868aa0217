// The official OpenAI client (node) against a running troupe that serves the shipped tiny model.
// usage: node openai_client.mjs http://127.0.0.1:8888        exit status 0: every claim held
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const base = process.argv[2];
if (!base) {
  console.error('usage: node openai_client.mjs BASE_URL');
  process.exit(2);
}
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: process.env.TROUPE_API_KEY ?? 'none', maxRetries: 0, timeout: 120000 });
const model = (await client.models.list()).data[0].id;
const question = [{ role: 'user', content: 'What is 17*19? Reply with the integer only.' }];
const quiet = { model, temperature: 0, chat_template_kwargs: { thinking: false } };
const tools = [{
  type: 'function',
  function: {
    name: 'get_weather', description: 'Get the weather of a city.',
    parameters: { type: 'object', properties: { city: { type: 'string', description: 'Name of the city' } }, required: ['city'] },
  },
}];
const weather = [
  { role: 'system', content: 'You are a friendly assistant.' },
  { role: 'user', content: 'What is the weather in Berlin, Munich and Athens?' },
];
const pixel = 'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

const cases = {
  async 'models: the list and one card'() {
    const card = await client.models.retrieve(model);
    assert.equal(card.id, model);
    assert.ok(card.max_model_len > 0);
  },
  async 'chat: an answer in one piece'() {
    const r = await client.chat.completions.create({ ...quiet, messages: question });
    assert.equal(r.choices[0].message.content, '323');
    assert.equal(r.choices[0].finish_reason, 'stop');
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.ok(r._request_id && r.id.endsWith(r._request_id));
  },
  async 'chat: the same as a stream, with usage'() {
    const stream = await client.chat.completions.create({ ...quiet, messages: question, stream: true, stream_options: { include_usage: true } });
    let text = '', usage = null, finish = [];
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? '';
      if (chunk.choices[0]?.finish_reason) finish.push(chunk.choices[0].finish_reason);
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, '323');
    assert.deepEqual(finish, ['stop']);
    assert.ok(usage.completion_tokens > 0);
  },
  async 'chat: the stream helper assembles the same message'() {
    const whole = await client.chat.completions.create({ ...quiet, messages: question });
    const helper = client.chat.completions.stream({ ...quiet, messages: question });
    const message = (await helper.finalChatCompletion()).choices[0].message;
    assert.equal(message.content, whole.choices[0].message.content);
    assert.equal(message.role, 'assistant');
  },
  async 'chat: reasoning comes apart from content under both names'() {
    const r = await client.chat.completions.create({ model, temperature: 0, messages: question, reasoning_effort: 75 });
    const m = r.choices[0].message;
    assert.ok(m.reasoning_content.length > 0);
    assert.equal(m.reasoning, m.reasoning_content);
    assert.match(m.content, /323/);
    assert.ok(r.usage.completion_tokens_details.reasoning_tokens > 0);
    const off = await client.chat.completions.create({ model, temperature: 0, messages: question, reasoning_effort: 'none' });
    assert.equal(off.choices[0].message.reasoning, null);
  },
  async 'chat: two choices, each with one finish'() {
    const helper = client.chat.completions.stream({ model, messages: question, n: 2, seed: 7, max_tokens: 40 });
    const choices = (await helper.finalChatCompletion()).choices;
    assert.deepEqual(choices.map((c) => c.index).sort(), [0, 1]);
    for (const c of choices) assert.ok(['stop', 'length'].includes(c.finish_reason));
  },
  async 'chat: a seed repeats an answer'() {
    const ask = () => client.chat.completions.create({ model, temperature: 1, seed: 11, messages: question, max_tokens: 40 });
    const [a, b] = await Promise.all([ask(), ask()]);
    assert.equal(a.choices[0].message.content, b.choices[0].message.content);
  },
  async 'chat: stop string and max_tokens end an answer'() {
    const cut = await client.chat.completions.create({ ...quiet, messages: question, max_tokens: 1 });
    assert.equal(cut.choices[0].finish_reason, 'length');
    assert.equal(cut.usage.completion_tokens, 1);
    const stopped = await client.chat.completions.create({ ...quiet, messages: question, stop: ['3'] });
    assert.equal(stopped.choices[0].message.content, '');
    assert.equal(stopped.choices[0].stop_reason, '3');
  },
  async 'chat: log-probabilities, one entry a token'() {
    const r = await client.chat.completions.create({ ...quiet, messages: question, logprobs: true, top_logprobs: 2 });
    const entries = r.choices[0].logprobs.content;
    assert.equal(entries.length, r.usage.completion_tokens);
    for (const e of entries) assert.ok(e.logprob <= 0 && e.top_logprobs.length === 2);
  },
  async 'tools: calls in one piece and through the stream helper'() {
    const body = { ...quiet, messages: weather, tools, max_tokens: 200 };
    const whole = (await client.chat.completions.create(body)).choices[0];
    assert.equal(whole.finish_reason, 'tool_calls');
    assert.equal(whole.message.content, null);
    assert.deepEqual(whole.message.tool_calls.map((c) => JSON.parse(c.function.arguments).city), ['Berlin', 'Munich', 'Athens']);
    for (const c of whole.message.tool_calls) assert.match(c.id, /^call_[A-Za-z0-9]{24}$/);
    const streamed = (await client.chat.completions.stream(body).finalChatCompletion()).choices[0];
    assert.deepEqual(streamed.message.tool_calls.map((c) => c.function), whole.message.tool_calls.map((c) => c.function));
    assert.equal(streamed.finish_reason, 'tool_calls');
  },
  async 'tools: one call only when asked so, and the result goes back'() {
    const first = (await client.chat.completions.create({ ...quiet, messages: weather, tools, parallel_tool_calls: false })).choices[0].message;
    assert.equal(first.tool_calls.length, 1);
    const next = await client.chat.completions.create({
      ...quiet, tools, max_tokens: 60,
      messages: [...weather, first, { role: 'tool', tool_call_id: first.tool_calls[0].id, content: '{"temp": 21}' }],
    });
    assert.ok(next.choices[0].finish_reason);
  },
  async 'images: a data URI is read, a broken one refused'() {
    const ask = (url) => client.chat.completions.create({ ...quiet, max_tokens: 4, messages: [{ role: 'user', content: [{ type: 'text', text: 'What is in this picture?' }, { type: 'image_url', image_url: { url } }] }] });
    const r = await ask(pixel);
    assert.ok(r.usage.prompt_tokens > 4);
    for (const bad of ['data:image/png;base64,AAAA', 'https://example.com/x.png', 'file:///etc/passwd'])
      await assert.rejects(ask(bad), (e) => e instanceof OpenAI.BadRequestError && e.param === 'messages');
  },
  async 'response format: a hint in the prompt, marked by a header'() {
    const { response } = await client.chat.completions.create({ ...quiet, messages: question, max_tokens: 4, response_format: { type: 'json_object' } }).withResponse();
    assert.equal(response.headers.get('x-troupe-response-format'), 'hint');
  },
  async 'completions: whole and streamed'() {
    const body = { model, prompt: 'What is', max_tokens: 8, temperature: 0 };
    const whole = await client.completions.create(body);
    let text = '';
    for await (const chunk of await client.completions.create({ ...body, stream: true })) text += chunk.choices[0]?.text ?? '';
    assert.equal(text, whole.choices[0].text);
    assert.equal(whole.choices[0].finish_reason, 'length');
  },
  async 'errors: status, class, param and request id'() {
    const ask = (more) => client.chat.completions.create({ ...quiet, messages: question, ...more });
    await assert.rejects(ask({ model: 'no-such-model' }), (e) => e instanceof OpenAI.NotFoundError && e.param === 'model' && e.requestID?.length > 0);
    await assert.rejects(ask({ temperature: 3 }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature' && /must be in \[0, 2\]/.test(e.message));
    await assert.rejects(ask({ messages: [] }), (e) => e.status === 400 && e.param === 'messages');
    await assert.rejects(ask({ tools, tool_choice: 'required' }), (e) => e.status === 400 && /not supported yet/.test(e.message));
    await assert.rejects(ask({ max_tokens: 100000000 }), (e) => e.status === 400 && /maximum context length/.test(e.message));
  },
  async 'disconnect: leaving the loop frees the place'() {
    const stream = await client.chat.completions.create({ model, messages: question, stream: true, ignore_eos: true, max_tokens: 10000 });
    for await (const chunk of stream) if (chunk.choices[0]?.delta?.content || chunk.choices[0]?.delta?.reasoning_content) break;
    const until = Date.now() + 5000;
    let running = 1;
    while (running > 0 && Date.now() < until) {
      const text = await (await fetch(`${base}/metrics`)).text();
      running = Number(/^vllm:num_requests_running\{.*\} (\d+)/m.exec(text)[1]);
    }
    assert.equal(running, 0);
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(`ok    ${name}`);
  } catch (e) {
    failed++;
    console.log(`FAIL  ${name}\n      ${String(e?.stack ?? e).split('\n').slice(0, 6).join('\n      ')}`);
  }
}
console.log(`${Object.keys(cases).length - failed} of ${Object.keys(cases).length} passed`);
process.exit(failed ? 1 : 0);
