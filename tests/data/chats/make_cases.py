"""Writes cases.json beside this file: chat templates, conversations, and what transformers makes of them.
Usage: make_cases.py [CONVERSATIONS [OUT]]   (needs transformers, jinja2, tokenizers; no torch)

The templates are written here in the form that published families have; every tag takes the white space before it, so that
the template without its generation marks makes the same text."""

import json
import pathlib
import random
import re
import re
import sys
import tempfile

import transformers

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent / "tokenizers"

# name: tokenizer, bos, eos, added tokens, what a conversation may have, template
FAMILIES = {}


def family(name, tokenizer, bos, eos, added, kinds, template):
    FAMILIES[name] = (tokenizer, bos, eos, added.split(), set(kinds.split()), template.strip("\n"))


family("chatml", "qwen2", None, "<|im_end|>", "", "system", """
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{- message['content'] + '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}
    {%- else %}
        {{- message['content'] + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""")

family("qwen-tools", "qwen2", None, "<|im_end|>", "<tool_call> </tool_call>", "system tools", """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""")

family("llama-headers", "llama3", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|> <|end_header_id|> <|eot_id|>", "system tools", """
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message.role == 'assistant' %}
            {%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}
        {%- else %}
            {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endif %}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- generation %}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
        {%- endgeneration %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""")

family("inst-system", "llama2", "<s>", "</s>", "", "system alternates", """
{%- if messages[0]['role'] == 'system' %}
    {%- set loop_messages = messages[1:] %}{%- set system_message = messages[0]['content'] %}
{%- else %}
    {%- set loop_messages = messages %}{%- set system_message = false %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Conversation roles must alternate') }}{%- endif %}
    {%- if loop.index0 == 0 and system_message != false %}
        {%- set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {%- else %}
        {%- set content = message['content'] %}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {%- generation %}{{- ' ' + content.strip() + ' ' + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
""")

family("inst-tools", "mistral", "<s>", "</s>", "[/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS]", "system tools-plain alternates", """
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}{{- message["content"]|trim + eos_token }}{%- endgeneration %}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with an initial system message!") }}
    {%- endif %}
{%- endfor %}
""")

family("turns", "llama2", "<s>", "<end_of_turn>", "<start_of_turn> <end_of_turn>", "system alternates parts", """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' %}
    {%- else %}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' %}
    {%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set first_user_prefix = "" %}{%- set loop_messages = messages %}
{%- endif %}
{%- macro text_of(content) %}
    {%- if content is string %}{{- content | trim }}
    {%- elif content is iterable %}
        {%- for item in content %}{%- if item['type'] == 'text' %}{{- item['text'] | trim }}{%- endif %}{%- endfor %}
    {%- else %}{{- raise_exception("Invalid content type") }}
    {%- endif %}
{%- endmacro %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}{%- endif %}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if role == "model" %}
        {%- generation %}{{- text_of(message['content']) }}{{- '<end_of_turn>' }}{%- endgeneration %}{{- '\\n' }}
    {%- else %}
        {{- text_of(message['content']) }}{{- '<end_of_turn>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
""")

family("role-tokens", "llama2", "<s>", "<|end|>", "<|user|> <|system|> <|assistant|> <|end|>", "system", """
{%- for message in messages %}
    {%- if message['role'] == 'system' and message['content'] %}
        {{- '<|system|>\\n' + message['content'] + '<|end|>\\n' }}
    {%- elif message['role'] == 'user' %}
        {{- '<|user|>\\n' + message['content'] + '<|end|>\\n' }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<|assistant|>\\n' }}{%- generation %}{{- message['content'] + '<|end|>' }}{%- endgeneration %}{{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}
""")

family("reasoner", "gpt2", "<|endoftext|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c> <\uff5cAssistant\uff5c> <\uff5cend\u2581of\u2581sentence\uff5c>", "system", """
{%- if not add_generation_prompt is defined %}{%- set add_generation_prompt = false %}{%- endif %}
{%- set ns = namespace(is_first=false, system_prompt='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{%- set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}
{{- bos_token }}{{- ns.system_prompt }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '<\uff5cUser\uff5c>' + message['content'] }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}
        {{- '<\uff5cAssistant\uff5c>' }}{%- generation %}{{- content + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<\uff5cAssistant\uff5c><think>\\n' }}{%- endif %}
""")

family("lines", "metaspace", "<s>", "</s>", "<s> </s>", "system", """
{%- for message in messages %}
    {%- if message['role'] in ['user', 'system'] %}
        {{- '<|' ~ message['role'] ~ '|>\\n' ~ message['content'] ~ eos_token ~ '\\n' }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<|assistant|>\\n' }}{%- generation %}{{- message['content'] ~ eos_token }}{%- endgeneration %}{{- '\\n' }}
    {%- endif %}
    {%- if loop.last and add_generation_prompt %}{{- '<|assistant|>' ~ '\\n' }}{%- endif %}
{%- endfor %}
""")

family("roles-of-tools", "o200k", None, "<|end_of_role|>", "<|start_of_role|> <|end_of_role|> <|end_of_text|>", "system tools-plain", """
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message, rest = messages[0]['content'], messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024." %}{%- set rest = messages %}
{%- endif %}
{%- if tools %}{%- set system_message = system_message + " You are given tools." %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>' }}{{- tools | map(attribute='function') | list | tojson(indent=2) }}{{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in rest %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{- message['content'] + '<|end_of_text|>' }}{%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|end_of_text|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}
""")

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a place, \u00b0C", "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["Oslo", "K\u00f6ln"]}, "days": {"type": "integer", "default": 3}}, "required": ["place"]}}},
    {"type": "function", "function": {"name": "add", "description": "Sum of \"a\" and b", "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}]
TEXTS = ["Hello!", "What is 2 + 2?", "It is 4.", "  Spaces around it \n", "Two\nlines\n\nand a third", "Gr\u00fc\u00dfe aus K\u00f6ln", "e\u0301 and \u00e9", "\u4f60\u597d\uff0c\u4e16\u754c",
         "caf\u00e9 \u2615 na\u00efve", "tabs\tand  double", "<b>bold</b> & \"quoted\" 'text'", "def f(x):\n    return x  # {{ no }} {% tag %}", "<think>\nLet me see.\n</think>\n\nThe answer is 7.",
         "1234567890", "a" * 90, "Yes.", "\U0001f600 ok", "It's fine; they're done.", "x = [1, 2, {'k': None}]"]


def conversation(rng, kinds):
    text = lambda: rng.choice(TEXTS)
    content = (lambda: [{"type": "text", "text": text()} for _ in range(rng.randint(1, 2))] if rng.random() < 0.3 else text()) if "parts" in kinds else text
    messages = [{"role": "system", "content": text()}] if "system" in kinds and rng.random() < 0.5 else []
    line = {"messages": messages}
    if ("tools" in kinds or "tools-plain" in kinds) and rng.random() < 0.5:
        line["tools"] = rng.sample(TOOLS, rng.randint(1, 2))
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": content()})
        if "tools" in kinds and "tools" in line and rng.random() < 0.5:
            call = {"type": "function", "function": {"name": "weather", "arguments": {"place": "K\u00f6ln", "days": rng.randint(1, 9), "exact": rng.choice([True, None, 0.5])}}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]} if rng.random() < 0.5 else {"role": "assistant", "tool_calls": [call]})
            messages.append({"role": "tool", "content": "{\"sky\": \"" + rng.choice(["clear", "gr\u00e5"]) + "\"}"})
        messages.append({"role": "assistant", "content": content()})
    return line


def case(name, rng):
    tokenizer, bos, eos, added, kinds, template = FAMILIES[name]
    source = TOKENIZERS / tokenizer / "tokenizer.json"
    document = json.loads(source.read_text())
    known = {token["content"] for token in document["added_tokens"]}
    first = max(max(document["model"]["vocab"].values()), max([token["id"] for token in document["added_tokens"]] + [0])) + 1
    new = [token for token in added if token not in known]
    decoder = {str(token["id"]): {k: token[k] for k in ("content", "single_word", "lstrip", "rstrip", "normalized", "special")} for token in document["added_tokens"]}
    decoder |= {str(first + i): {"content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": "tool_call" not in token} for i, token in enumerate(new)}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "added_tokens_decoder": decoder, "chat_template": template}
    if bos:
        config["bos_token"] = bos
    if not new and eos not in known:
        sys.exit(f"{name}: {eos} is no token")
    return tokenizer, config, kinds


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else HERE / "cases.json"
    rng = random.Random(45)
    result = []
    for name in FAMILIES:
        tokenizer, config, kinds = case(name, rng)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.json").write_text((TOKENIZERS / tokenizer / "tokenizer.json").read_text())
            (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
            fast = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        plain = re.sub(r"\{%- (end)?generation %\}", "", config["chat_template"])
        conversations = []
        for _ in range(count):
            line = conversation(rng, kinds)
            made = fast.apply_chat_template(line["messages"], tools=line.get("tools"), tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            text = fast.apply_chat_template(line["messages"], tools=line.get("tools"), tokenize=False)
            assert text == fast.apply_chat_template(line["messages"], tools=line.get("tools"), chat_template=plain, tokenize=False), name
            assert len(made["input_ids"]) == len(made["assistant_masks"]) and sum(made["assistant_masks"]) > 0
            mask = "".join(map(str, made["assistant_masks"]))
            conversations.append({"line": json.dumps(line, ensure_ascii=False), "text": text, "ids": made["input_ids"], "mask": mask})
        result.append({"name": name, "tokenizer": tokenizer, "config": config, "plain": plain, "conversations": conversations})
    out.write_text("[" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in result) + "]\n")
    print(f"{sum(len(one['conversations']) for one in result)} conversations, transformers {transformers.__version__}, {out.stat().st_size} bytes")


main()
