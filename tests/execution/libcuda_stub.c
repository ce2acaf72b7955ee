// A libcuda.so.1 without a GPU, with the signatures of cuda.h: it checks what it is given and has the host's memory. For test_cuda_bindings.py.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/mman.h>
#include <cuda.h>
#define F(name, ...) static CUresult s_##name(__VA_ARGS__)
F(cuInit, unsigned f){return f?1:0;}
F(cuDriverGetVersion,int*v){*v=13000;return 0;}
F(cuDeviceGetCount,int*n){*n=2;return 0;}
F(cuDeviceGet,CUdevice*d,int o){if(o>1)return 101;*d=o;return 0;}
F(cuDeviceGetName,char*n,int l,CUdevice d){snprintf(n,l,"stub %d",d);return 0;}
F(cuDeviceGetUuid,CUuuid*u,CUdevice d){memset(u,0xab,16);u->bytes[15]=d;return 0;}
F(cuDeviceGetAttribute,int*v,CUdevice_attribute a,CUdevice d){ (void)d; *v=1;
 if(a==CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)*v=9; if(a==CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)*v=0; if(a==CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)*v=132; return 0;}
F(cuDeviceCanAccessPeer,int*v,CUdevice a,CUdevice b){*v=a!=b;return 0;}
F(cuDeviceGetP2PAttribute,int*v,CUdevice_P2PAttribute a,CUdevice x,CUdevice y){(void)x;(void)y;*v=a==CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;return 0;}
static CUcontext cur;
F(cuDevicePrimaryCtxRetain,CUcontext*c,CUdevice d){*c=(CUcontext)(uintptr_t)(0x1000+d);return 0;}
F(cuDevicePrimaryCtxRelease,CUdevice d){(void)d;return 0;}
F(cuCtxSetCurrent,CUcontext c){cur=c;return 0;}
F(cuCtxGetCurrent,CUcontext*c){*c=cur;return 0;}
F(cuMemGetAllocationGranularity,size_t*g,const CUmemAllocationProp*p,CUmemAllocationGranularity_flags f){ if(f!=0||p->type!=CU_MEM_ALLOCATION_TYPE_PINNED||p->location.type!=CU_MEM_LOCATION_TYPE_DEVICE) return 1; *g=2<<20;return 0;}
F(cuMemCreate,CUmemGenericAllocationHandle*h,size_t s,const CUmemAllocationProp*p,unsigned long long f){ if(f||s%(2<<20)||p->location.id>1||(p->requestedHandleTypes!=1&&p->requestedHandleTypes!=0))return 1; int fd=memfd_create("stub",0); if(ftruncate(fd,s))return 2; *h=fd;return 0;}
F(cuMemRelease,CUmemGenericAllocationHandle h){return close((int)h)?1:0;}
F(cuMemExportToShareableHandle,void*out,CUmemGenericAllocationHandle h,CUmemAllocationHandleType t,unsigned long long f){ if(t!=1||f)return 1; *(int*)out=dup((int)h);return 0;}
F(cuMemImportFromShareableHandle,CUmemGenericAllocationHandle*h,void*os,CUmemAllocationHandleType t){ if(t!=1)return 1; int d=dup((int)(intptr_t)os); if(d<0)return 1; *h=d;return 0;}
F(cuMemAddressReserve,CUdeviceptr*p,size_t s,size_t a,CUdeviceptr addr,unsigned long long f){ if(addr||f||a!=2<<20)return 1; void*m=mmap(0,s,PROT_NONE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0); *p=(CUdeviceptr)m;return 0;}
F(cuMemAddressFree,CUdeviceptr p,size_t s){return munmap((void*)p,s)?1:0;}
F(cuMemMap,CUdeviceptr p,size_t s,size_t o,CUmemGenericAllocationHandle h,unsigned long long f){ if(o||f)return 1; return mmap((void*)p,s,PROT_NONE,MAP_SHARED|MAP_FIXED,(int)h,0)==MAP_FAILED;}
F(cuMemUnmap,CUdeviceptr p,size_t s){ return mmap((void*)p,s,PROT_NONE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED,-1,0)==MAP_FAILED;}
F(cuMemSetAccess,CUdeviceptr p,size_t s,const CUmemAccessDesc*d,size_t n){ for(size_t i=0;i<n;i++) if(d[i].location.type!=CU_MEM_LOCATION_TYPE_DEVICE||d[i].location.id>1||d[i].flags!=3)return 1; return mprotect((void*)p,s,3)?1:0;}
F(cuMemAlloc,CUdeviceptr*p,size_t s){ if(!cur)return 201; if(s>(1ull<<40))return 2; *p=(CUdeviceptr)malloc(s);return 0;}
F(cuMemFree,CUdeviceptr p){ if(!cur)return 201; free((void*)p);return 0;}
F(cuMemAllocAsync,CUdeviceptr*p,size_t s,CUstream st){ if(st!=(CUstream)0x55)return 1; *p=(CUdeviceptr)malloc(s);return 0;}
F(cuMemFreeAsync,CUdeviceptr p,CUstream st){ if(st!=(CUstream)0x55)return 1; free((void*)p);return 0;}
F(cuIpcGetMemHandle,CUipcMemHandle*h,CUdeviceptr p){ memset(h,7,64); memcpy(h,&p,8);return 0;}
F(cuIpcOpenMemHandle,CUdeviceptr*p,CUipcMemHandle h,unsigned f){ if(f!=1||h.reserved[63]!=7)return 1; memcpy(p,&h,8);return 0;}
F(cuIpcCloseMemHandle,CUdeviceptr p){(void)p;return 0;}
F(cuMemsetD8Async,CUdeviceptr p,unsigned char c,size_t n,CUstream s){(void)s;memset((void*)p,c,n);return 0;}
F(cuMemcpyHtoDAsync,CUdeviceptr d,const void*s,size_t n,CUstream st){(void)st;memcpy((void*)d,s,n);return 0;}
F(cuMemcpyDtoHAsync,void*d,CUdeviceptr s,size_t n,CUstream st){(void)st;memcpy(d,(void*)s,n);return 0;}
F(cuMemcpyAsync,CUdeviceptr d,CUdeviceptr s,size_t n,CUstream st){(void)st;memcpy((void*)d,(void*)s,n);return 0;}
F(cuModuleLoadData,CUmodule*m,const void*i){ if(memcmp(i,"\177ELF",4))return 200; *m=(CUmodule)0x77;return 0;}
F(cuModuleUnload,CUmodule m){return m==(CUmodule)0x77?0:1;}
static char names[16][128]; static int n_names;
F(cuModuleGetFunction,CUfunction*f,CUmodule m,const char*n){ if(m!=(CUmodule)0x77)return 1; strcpy(names[n_names%16],n); *f=(CUfunction)names[n_names++%16];return 0;}
F(cuOccupancyMaxActiveBlocksPerMultiprocessor,int*n,CUfunction f,int t,size_t s){(void)f;(void)t;(void)s;*n=4;return 0;}
static CUresult launched(const char*how,CUfunction f,unsigned gx,unsigned gy,unsigned gz,unsigned bx,unsigned by,unsigned bz,unsigned sh,CUstream s,void**p){
 uint32_t* comm=p[0]; fprintf(stderr,"%s %s grid %u,%u,%u block %u,%u,%u shared %u stream %p rank %u of %u",how,(char*)f,gx,gy,gz,bx,by,bz,sh,(void*)s,comm[0],comm[1]);
 if(strstr((char*)f,"all_reduce_ll")) { uint64_t in=*(uint64_t*)p[1], out=*(uint64_t*)p[2], n=*(uint64_t*)p[3]; fprintf(stderr," in %lx out %lx count %lu first %g\n",in,out,n,*(float*)in); memcpy((void*)out,(void*)in,n*4);} else fprintf(stderr,"\n"); return 0;}
F(cuLaunchKernel,CUfunction f,unsigned gx,unsigned gy,unsigned gz,unsigned bx,unsigned by,unsigned bz,unsigned sh,CUstream s,void**p,void**e){ if(e)return 1; return launched("plain",f,gx,gy,gz,bx,by,bz,sh,s,p);}
F(cuLaunchCooperativeKernel,CUfunction f,unsigned gx,unsigned gy,unsigned gz,unsigned bx,unsigned by,unsigned bz,unsigned sh,CUstream s,void**p){ return launched("cooperative",f,gx,gy,gz,bx,by,bz,sh,s,p);}
F(cuStreamCreate,CUstream*s,unsigned f){ if(f!=1)return 1; *s=(CUstream)0x55;return 0;}
F(cuStreamDestroy,CUstream s){return s==(CUstream)0x55?0:1;}
F(cuStreamSynchronize,CUstream s){(void)s;return 0;}
F(cuStreamWaitEvent,CUstream s,CUevent e,unsigned f){(void)s;return e==(CUevent)0x66&&!f?0:1;}
F(cuStreamIsCapturing,CUstream s,CUstreamCaptureStatus*c){(void)s;*c=0;return 0;}
F(cuEventCreate,CUevent*e,unsigned f){(void)f;*e=(CUevent)0x66;return 0;}
F(cuEventRecord,CUevent e,CUstream s){(void)e;(void)s;return 0;}
F(cuEventSynchronize,CUevent e){(void)e;return 0;}
F(cuEventElapsedTime,float*t,CUevent a,CUevent b){(void)a;(void)b;*t=2.5f;return 0;}
F(cuEventDestroy,CUevent e){(void)e;return 0;}
F(cuStreamBeginCapture,CUstream s,CUstreamCaptureMode m){(void)s;return m==CU_STREAM_CAPTURE_MODE_THREAD_LOCAL?0:1;}
F(cuStreamEndCapture,CUstream s,CUgraph*g){(void)s;*g=(CUgraph)0x88;return 0;}
F(cuGraphInstantiateWithFlags,CUgraphExec*e,CUgraph g,unsigned long long f){ if(f||g!=(CUgraph)0x88)return 1; *e=(CUgraphExec)0x99;return 0;}
F(cuGraphLaunch,CUgraphExec e,CUstream s){(void)s;return e==(CUgraphExec)0x99?0:1;}
F(cuGraphExecDestroy,CUgraphExec e){return e==(CUgraphExec)0x99?0:1;}
F(cuGraphDestroy,CUgraph g){return g==(CUgraph)0x88?0:1;}
F(cuGetErrorName,CUresult r,const char**n){*n=r==2?"CUDA_ERROR_OUT_OF_MEMORY":r==101?"CUDA_ERROR_INVALID_DEVICE":"CUDA_ERROR_OTHER";return 0;}
F(cuGetErrorString,CUresult r,const char**n){(void)r;*n="words of the driver";return 0;}
static struct {const char*n; void*f;} T[]={
#define E(x) {#x,(void*)s_##x},
E(cuInit)E(cuDriverGetVersion)E(cuDeviceGetCount)E(cuDeviceGet)E(cuDeviceGetName)E(cuDeviceGetUuid)E(cuDeviceGetAttribute)E(cuDeviceCanAccessPeer)E(cuDeviceGetP2PAttribute)E(cuDevicePrimaryCtxRetain)E(cuDevicePrimaryCtxRelease)E(cuCtxSetCurrent)E(cuCtxGetCurrent)E(cuMemGetAllocationGranularity)E(cuMemCreate)E(cuMemRelease)E(cuMemExportToShareableHandle)E(cuMemImportFromShareableHandle)E(cuMemAddressReserve)E(cuMemAddressFree)E(cuMemMap)E(cuMemUnmap)E(cuMemSetAccess)E(cuMemAlloc)E(cuMemFree)E(cuMemAllocAsync)E(cuMemFreeAsync)E(cuIpcGetMemHandle)E(cuIpcOpenMemHandle)E(cuIpcCloseMemHandle)E(cuMemsetD8Async)E(cuMemcpyHtoDAsync)E(cuMemcpyDtoHAsync)E(cuMemcpyAsync)E(cuModuleLoadData)E(cuModuleUnload)E(cuModuleGetFunction)E(cuOccupancyMaxActiveBlocksPerMultiprocessor)E(cuLaunchKernel)E(cuLaunchCooperativeKernel)E(cuStreamCreate)E(cuStreamDestroy)E(cuStreamSynchronize)E(cuStreamWaitEvent)E(cuStreamIsCapturing)E(cuEventCreate)E(cuEventRecord)E(cuEventSynchronize)E(cuEventElapsedTime)E(cuEventDestroy)E(cuStreamBeginCapture)E(cuStreamEndCapture)E(cuGraphInstantiateWithFlags)E(cuGraphLaunch)E(cuGraphExecDestroy)E(cuGraphDestroy)E(cuGetErrorName)E(cuGetErrorString){0,0}};
static void* find(const char*s){ for(int i=0;T[i].n;i++) if(!strcmp(T[i].n,s)) return T[i].f; if(!strcmp(s,"cuGraphInstantiate")) return (void*)s_cuGraphInstantiateWithFlags; return 0;}
#undef cuGetProcAddress
CUresult cuGetProcAddress_v2(const char*s,void**p,int v,cuuint64_t f,CUdriverProcAddressQueryResult*q){ (void)v;(void)f; *p=find(s); if(q)*q=*p?0:1; if(!*p) *p=0; return *p?0:500; }
CUresult cuGetProcAddress(const char*s,void**p,int v,cuuint64_t f){ return cuGetProcAddress_v2(s,p,v,f,0); }
