"""A folder as buckets of an object store on this machine, every answer late: python object_server.py FOLDER DELAY_S.

Prints its port. DELETE of anything says how many GETs and bytes there were since the last one.
"""

import asyncio
import sys

from aiohttp import web

FOLDER, DELAY = sys.argv[1], float(sys.argv[2])
counts = {"requests": 0, "bytes": 0}


@web.middleware
async def late(request, handler):
    if request.method == "DELETE":
        answer = web.json_response(counts)
        counts.update(requests=0, bytes=0)
        return answer
    await asyncio.sleep(DELAY)
    counts["requests"] += 1
    return await handler(request)


async def count(request, response):
    if request.method == "GET":
        counts["bytes"] += response.content_length or 0


async def main():
    app = web.Application(middlewares=[late])
    app.on_response_prepare.append(count)
    app.router.add_static("/", FOLDER)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
